"""What we are measured against, each in a process of its own: `python -m agent.bench.rival`.

`genai` is openvino_genai's continuous batching; `unsplit` is the whole graph in exact mode, one sequence at a time,
in a plain loop. A rival reads JSON lines from stdin (the first says what to be) and answers each with one line.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Protocol

from agent.bench.arrivals import Traffic, from_json, to_json
from agent.bench.child import Child
from agent.bench.load import Answer, Load
from shards import manifest

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


class Rival(Child):
    """The parent's side of a rival process."""

    def __init__(self, name: RivalName, package: Path, *, threads: int = 1, cores: Sequence[int] | None = None) -> None:
        """Start it.

        Args:
            name: What it shall be.
            package: The model.
            threads: Inference threads.
            cores: Processors its process is kept on.

        Raises:
            StageError: the process ended before it was ready.
        """
        super().__init__("agent.bench.rival", name)
        cores = None if cores is None else list(cores)
        self.begin({"name": name, "package": str(package), "threads": threads, "cores": cores})

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[float, list[list[int]]]:
        """Generate greedily past any stop token; returns (seconds, new tokens of each prompt)."""
        answer = self.ask({"prompts": [list(p) for p in prompts], "new_tokens": new_tokens})
        return answer["seconds"], answer["tokens"]

    def run_traffic(self, traffic: Traffic, prompts: Sequence[Sequence[int]], new_tokens: int) -> Load:
        """What `load.run_traffic` does, of `genai` alone, and in its process: the parent costs nothing."""
        message = {"traffic": to_json(traffic), "prompts": [list(p) for p in prompts], "new_tokens": new_tokens}
        return Load(tuple(Answer(**answer) for answer in self.ask(message)["answers"]))


class _Engine(Protocol):
    def run(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]: ...


class _GenAI:
    """openvino_genai.ContinuousBatchingPipeline, driven step by step."""

    def __init__(self, package: Path, folder: Path, threads: int, cores: Sequence[int] | None) -> None:
        import openvino_genai

        for name, original in _LINKS.items():
            _link(package / original, folder / name)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1  # GB
        scheduler.enable_prefix_caching = False
        self._genai = openvino_genai
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
        if cores is not None:
            properties["ENABLE_CPU_PINNING"] = False  # the process is pinned, and the plugin would not look at that
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", properties)
        self._next = 0

    def run(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        handles = [self._add(prompt, new_tokens) for prompt in prompts]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        return [list(handle.read_all()[0].generated_ids) for handle in handles]

    def run_traffic(self, traffic: Traffic, prompts: list[list[int]], new_tokens: int) -> list[Answer]:
        """As `load.run_traffic`, between the steps of the engine instead of beside them."""
        arrivals = traffic.begin()
        answers: list[Answer] = []
        open_: list[tuple[Any, Answer]] = []
        began = time.perf_counter()
        while True:
            for due in arrivals.take(time.perf_counter() - began):
                answer = Answer(due)
                open_.append((self._add(prompts[len(answers) % len(prompts)], new_tokens), answer))
                answers.append(answer)
            if not open_:
                if arrivals.is_over:
                    return answers
                time.sleep(max(0.0, (arrivals.next or 0.0) - (time.perf_counter() - began)))
                continue
            self._pipeline.step()
            now = time.perf_counter() - began
            for handle, answer in open_:
                while handle.can_read():
                    tokens = handle.read()[0].generated_ids
                    answer.tokens += tokens
                    answer.times += [now] * len(tokens)
            for _ in range(sum(len(answer.tokens) >= new_tokens for _, answer in open_)):
                arrivals.answered()
            open_ = [(handle, answer) for handle, answer in open_ if len(answer.tokens) < new_tokens]

    def _add(self, prompt: list[int], new_tokens: int) -> Any:
        import numpy as np
        import openvino as ov

        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new_tokens, True, False
        self._next += 1
        return self._pipeline.add_request(self._next, ov.Tensor(np.array([prompt], np.int64)), config)


class _Unsplit:
    """The whole stateful graph in exact mode."""

    def __init__(self, package: Path, threads: int) -> None:
        import openvino as ov

        from shards.device import properties

        core = ov.Core()
        model = core.read_model(package / manifest.GRAPH, package / manifest.WEIGHTS)
        compiled = core.compile_model(model, "CPU", properties("CPU", "exact", threads))
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
    package, threads, cores = Path(start["package"]), start["threads"], start["cores"]
    if cores is not None:
        from shards.device import pin_process

        pin_process(cores)
    with tempfile.TemporaryDirectory(prefix="edge-agent-bench-") as folder:
        engine: _Engine
        if start["name"] == "genai":
            engine = _GenAI(package, Path(folder), threads, cores)
        else:
            engine = _Unsplit(package, threads)
        print("{}", flush=True)
        for line in sys.stdin:
            work = json.loads(line)
            print(json.dumps(_do(engine, work)), flush=True)


def _do(engine: _Engine, work: dict[str, Any]) -> dict[str, Any]:
    prompts, new_tokens = work["prompts"], work["new_tokens"]
    if "traffic" in work:
        assert isinstance(engine, _GenAI)
        answers = engine.run_traffic(from_json(work["traffic"]), prompts, new_tokens)
        return {"answers": [asdict(answer) for answer in answers]}
    began = time.perf_counter()
    tokens = engine.run(prompts, new_tokens)
    return {"seconds": time.perf_counter() - began, "tokens": tokens}


if __name__ == "__main__":
    main()
