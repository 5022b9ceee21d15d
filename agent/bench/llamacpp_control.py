"""llama-cpp-python by itself on the whole GGUF, in a process of its own: `python -m agent.bench.llamacpp_control`.

One prompt is answered as its `Llama` class does it; several at a time, which that cannot, by `llama_decode` over a
batch with a row of each, through its low-level interface. One thread; keys and values in f16. It reads JSON lines from
stdin (the first says which file) and answers each with one line.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from agent.bench.child import Child


class LlamaCppControl(Child):
    """The parent's side.

    Args:
        gguf: The model.
        users: Most prompts at a time.
        context: Most tokens of each, prompt and answer.
        cores: Processors its process is kept on.

    Raises:
        StageError: the process ended before it was ready.
    """

    def __init__(self, gguf: Path, users: int, context: int, cores: Sequence[int]) -> None:
        super().__init__("agent.bench.llamacpp_control", "llama-cpp-python")
        self.begin({"gguf": str(gguf), "users": users, "context": context, "cores": list(cores)})

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[float, list[list[int]]]:
        """Answer greedily past any stop token.

        Returns:
            (tokens a second of all prompts together from when each has its first token, new tokens of each).
        """
        answer = self.ask({"prompts": [list(prompt) for prompt in prompts], "new_tokens": new_tokens})
        return len(prompts) * (new_tokens - 1) / answer["seconds"], answer["tokens"]


class _Batched:
    """A context of its own that decodes several sequences in one step."""

    def __init__(self, model: Any, users: int, context: int) -> None:
        from llama_cpp import llama_cpp

        self._lib = lib = llama_cpp
        parameters = lib.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = users * context, users
        parameters.n_batch = parameters.n_ubatch = max(users, context)
        parameters.n_threads = parameters.n_threads_batch = 1
        parameters.kv_unified = True
        self._context = lib.llama_init_from_model(model, parameters)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context")
        self._vocabulary = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        self._batch = lib.llama_batch_init(parameters.n_batch, 0, 1)

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[float, list[list[int]]]:
        """Seconds of decoding after the first tokens, and all new ones."""
        lib = self._lib
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        answers: list[list[int]] = []
        for sequence, prompt in enumerate(prompts):
            rows = [(token, position, sequence) for position, token in enumerate(prompt)]
            answers.append(self._step(rows, [len(rows) - 1]))
        began = time.perf_counter()
        for made in range(1, new_tokens):
            rows = [
                (answer[-1], len(prompt) + made - 1, sequence)
                for sequence, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
            ]
            for answer, token in zip(answers, self._step(rows, range(len(rows))), strict=True):
                answer.append(token)
        return time.perf_counter() - began, answers

    def _step(self, rows: Sequence[tuple[int, int, int]], wanted: Sequence[int]) -> list[int]:
        """Run (token, position, sequence) rows; the likeliest token after each wanted one."""
        import numpy as np

        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = i in wanted
        if code := self._lib.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {code}")
        logits = ctypes.cast(self._lib.llama_get_logits(self._context), ctypes.POINTER(ctypes.c_float))
        return [int(token) for token in np.ctypeslib.as_array(logits, (len(wanted), self._vocabulary)).argmax(axis=1)]


def main() -> None:
    """The child: answer until stdin ends."""
    start = json.loads(sys.stdin.readline())
    from shards.device import pin_process

    pin_process(start["cores"])
    import llama_cpp

    single = llama_cpp.Llama(
        start["gguf"], n_ctx=start["context"], n_threads=1, n_threads_batch=1, flash_attn=True, verbose=False
    )
    batched = _Batched(single.model, start["users"], start["context"])
    print("{}", flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        prompts, new_tokens = work["prompts"], work["new_tokens"]
        if len(prompts) == 1:
            seconds, tokens = _generate(single, prompts[0], new_tokens)
        else:
            seconds, tokens = batched.run(prompts, new_tokens)
        print(json.dumps({"seconds": seconds, "tokens": tokens}), flush=True)


def _generate(single: Any, prompt: Sequence[int], new_tokens: int) -> tuple[float, list[list[int]]]:
    single.reset()
    tokens = single.generate(prompt, temp=0.0, repeat_penalty=1.0)
    first = next(tokens)
    began = time.perf_counter()
    answer = [first, *islice(tokens, new_tokens - 1)]
    return time.perf_counter() - began, [answer]


if __name__ == "__main__":
    main()
