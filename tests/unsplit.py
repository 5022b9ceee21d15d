"""The unsplit model as an oracle, in each engine's own library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from shards import manifest as manifests
from shards.device import properties
from shards.manifest import GRAPH, WEIGHTS


class Whole:
    """The unsplit graph of a package in plain OpenVINO, exact."""

    def __init__(self, package: Path) -> None:
        core = ov.Core()
        model = core.read_model(package / GRAPH, package / WEIGHTS)
        self._ports = {name for port in model.inputs for name in port.names}
        self._request = core.compile_model(model, "CPU", properties("CPU", "exact")).create_infer_request()

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits [tokens, vocabulary]."""
        self._request.reset_state()
        return self._rows(tokens, 0)

    def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        """The likeliest next tokens."""
        out = [int(self.logits(prompt)[-1].argmax())]
        while len(out) < count:
            out.append(int(self._rows(out[-1:], len(prompt) + len(out) - 1)[-1].argmax()))
        return out

    def _rows(self, tokens: Sequence[int], past: int) -> NDArray[np.float32]:
        end = past + len(tokens)
        feed: dict[str, NDArray[Any]] = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(past, end)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self._request.infer({name: value for name, value in feed.items() if name in self._ports})
        rows: NDArray[np.float32] = self._request.get_output_tensor(0).data[0].copy()
        return rows


class WholeGguf:
    """The unsplit GGUF of a package in llama-cpp-python, keys and values in f32."""

    def __init__(self, package: Path) -> None:
        import llama_cpp

        self._model = llama_cpp.Llama(
            manifests.read(package).source["path"],
            n_ctx=2048,
            n_threads=1,
            n_threads_batch=1,
            logits_all=True,
            flash_attn=False,
            type_k=llama_cpp.GGML_TYPE_F32,
            type_v=llama_cpp.GGML_TYPE_F32,
            verbose=False,
        )

    def logits(self, tokens: Sequence[int], chunk: int = 512) -> NDArray[np.float32]:
        """Logits [tokens, vocabulary], in steps of so many tokens."""
        self._model.reset()
        for start in range(0, len(tokens), chunk):
            self._model.eval(tokens[start : start + chunk])
        rows: NDArray[np.float32] = self._model.scores[: len(tokens)].copy()
        return rows

    def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        """The likeliest next tokens."""
        out = [int(self.logits(prompt)[-1].argmax())]
        while len(out) < count:
            self._model.eval(out[-1:])
            out.append(int(self._model.scores[len(prompt) + len(out) - 1].argmax()))
        return out
