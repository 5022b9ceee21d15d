"""What we are measured against, each in a process of its own: `python -m agent.bench.rival`.

`genai` is openvino_genai's continuous batching; `unsplit` is the whole graph in exact mode, one sequence at a time,
in a plain loop. A rival reads JSON lines from stdin (the first says what to be) and answers each with one line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from shards import manifest
from shards.errors import StageError

RivalName = Literal["genai", "unsplit"]
_LINKS = {
    "openvino_model.xml": manifest.GRAPH,
    "openvino_model.bin": manifest.WEIGHTS,
    "openvino_tokenizer.xml": manifest.TOKENIZER,
    "openvino_tokenizer.bin": manifest.TOKENIZER.replace(".xml", ".bin"),
    "openvino_detokenizer.xml": manifest.DETOKENIZER,
    "openvino_detokenizer.bin": manifest.DETOKENIZER.replace(".xml", ".bin"),
}
"""What GenAI looks for in a folder, and where a package has it."""


class Rival:
    """The parent's side of a rival process."""

    def __init__(self, name: RivalName, package: Path) -> None:
        """Start it, with one inference thread.

        Raises:
            StageError: the process ended before it was ready.
        """
        self.name = name
        self._child = subprocess.Popen(
            [sys.executable, "-m", "agent.bench.rival"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._ask({"name": name, "package": str(package)})

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[float, list[list[int]]]:
        """Generate greedily past any stop token; returns (seconds, new tokens of each prompt)."""
        answer = self._ask({"prompts": [list(p) for p in prompts], "new_tokens": new_tokens})
        return answer["seconds"], answer["tokens"]

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None and self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps(message) + "\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise StageError(f"the {self.name} process ended with code {self._child.wait()}", where="bench")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process: it leaves by itself, and cleans up, when its stdin ends."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.close()
        try:
            self._child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Engine(Protocol):
    def run(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]: ...


class _GenAI:
    """openvino_genai.ContinuousBatchingPipeline, driven step by step."""

    def __init__(self, package: Path, folder: Path) -> None:
        import openvino_genai

        for name, original in _LINKS.items():
            _link(package / original, folder / name)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1  # GB
        scheduler.enable_prefix_caching = False
        self._genai = openvino_genai
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(folder), scheduler, "CPU", {"INFERENCE_NUM_THREADS": 1}
        )
        self._next = 0

    def run(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        import numpy as np
        import openvino as ov

        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new_tokens, True, False
        handles = []
        for prompt in prompts:
            handles.append(self._pipeline.add_request(self._next, ov.Tensor(np.array([prompt], np.int64)), config))
            self._next += 1
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        return [list(handle.read_all()[0].generated_ids) for handle in handles]


class _Unsplit:
    """The whole stateful graph in exact mode."""

    def __init__(self, package: Path) -> None:
        import openvino as ov

        from shards.device import properties

        core = ov.Core()
        model = core.read_model(package / manifest.GRAPH, package / manifest.WEIGHTS)
        compiled = core.compile_model(model, "CPU", properties("CPU", "exact", threads=1))
        self._request = compiled.create_infer_request()
        self._ports = {name for port in compiled.inputs for name in port.names}

    def run(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        return [self._generate(prompt, new_tokens) for prompt in prompts]

    def _generate(self, prompt: list[int], new_tokens: int) -> list[int]:
        import numpy as np

        self._request.reset_state()
        answer: list[int] = []
        ids, past = np.array([prompt], np.int64), 0
        while len(answer) < new_tokens:
            rows = ids.shape[1]
            feed = {
                "input_ids": ids,
                "attention_mask": np.ones((1, past + rows), np.int64),
                "position_ids": np.arange(past, past + rows, dtype=np.int64)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
            self._request.infer({name: value for name, value in feed.items() if name in self._ports})
            past += rows
            answer.append(int(self._request.get_output_tensor(0).data[0, -1].argmax()))
            ids = np.array([[answer[-1]]], np.int64)
        return answer


def _link(original: Path, link: Path) -> None:
    """A second name for a file, without its bytes where the file system can."""
    try:
        link.hardlink_to(original)
    except OSError:
        import shutil

        shutil.copyfile(original, link)


def main() -> None:
    """The child: be a rival until stdin ends."""
    start = json.loads(sys.stdin.readline())
    package = Path(start["package"])
    with tempfile.TemporaryDirectory(prefix="edge-agent-bench-") as folder:
        engine: _Engine = _GenAI(package, Path(folder)) if start["name"] == "genai" else _Unsplit(package)
        print("{}", flush=True)
        for line in sys.stdin:
            work = json.loads(line)
            began = time.perf_counter()
            tokens = engine.run(work["prompts"], work["new_tokens"])
            print(json.dumps({"seconds": time.perf_counter() - began, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main()
