"""Memory: exporting an IR never holds more than a layer's weights beyond what OpenVINO maps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from packages import link, with_tokenizer
from zoo import family_ir

WIDER = 64
"""Times the model's intermediate size."""

PROGRAM = """
import json, sys, threading
from pathlib import Path
import psutil
from exporters.export import export

def anonymous():
    info = psutil.Process().memory_info()
    return info.rss - info.shared if hasattr(info, "shared") else psutil.Process().memory_full_info().uss

def measured(source, target, split):
    before, peak, over = anonymous(), 0, threading.Event()
    def watch():
        nonlocal peak
        while not over.wait(0.001):
            peak = max(peak, anonymous())
    thread = threading.Thread(target=watch)
    thread.start()
    made = export(source, Path(target), split=split, verified=False)
    over.set()
    thread.join()
    layers = [sum(end - start for start, end in layer) for layer in made.manifest.spans.layers]
    return {"growth": peak - before, "layer": max(layers), "layers": sum(layers)}

small, large, folder = sys.argv[1:]
measured(small, folder + "/small", ())  # libraries, and a graph of the same number of operations
print(json.dumps([measured(large, folder + "/large", ()), measured(large, folder + "/split", (2, 2))]))
"""


def widened(ir: Path, folder: Path) -> Path:
    """The same graph with a larger intermediate size: more weights, nothing else."""
    import openvino as ov
    from openvino import opset13 as op

    folder.mkdir()
    config = json.loads((ir / "config.json").read_text("utf-8"))
    narrow = config["intermediate_size"]
    model = ov.Core().read_model(ir / "openvino_model.xml")
    numbers = np.random.default_rng(0)
    for node in model.get_ordered_ops():
        shape = list(node.get_output_shape(0)) if node.get_type_name() == "Constant" else []
        if len(shape) == 2 and narrow in shape:
            wide = [dim * WIDER if dim == narrow else dim for dim in shape]
            data = numbers.normal(size=wide).astype(node.get_output_element_type(0).to_dtype())
            constant = op.constant(data)
            constant.set_friendly_name(node.get_friendly_name())
            for port in node.output(0).get_target_inputs():
                port.replace_source_output(constant.output(0))
    model.validate_nodes_and_infer_types()
    ov.serialize(model, folder / "openvino_model.xml")
    link(ir / "config.json", folder / "config.json")
    return folder


def test_holds_less_than_a_layer_of_weights(smollm2_ir: Path, tmp_path: Path) -> None:
    tiny = family_ir("llama")
    small = with_tokenizer(tiny, smollm2_ir, tmp_path / "small-source")
    large = with_tokenizer(widened(tiny, tmp_path / "large-source"), smollm2_ir, tmp_path / "large-source")
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(small), str(large), str(tmp_path)],
        stdout=subprocess.PIPE, check=True, encoding="utf-8",
    )  # fmt: skip
    for measured in json.loads(ran.stdout):
        assert measured["layers"] == 4 * measured["layer"]
        assert measured["layer"] > 10e6  # large enough to be told from everything else
        assert measured["growth"] < measured["layer"]
