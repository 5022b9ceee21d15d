"""llama.cpp's low-level functions, by llama-cpp-python. What is used of them is checked once, before a model is loaded.

Its C interface changes often: a function or field that went would otherwise end the process in the middle of a step.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from shards.errors import StageError

PACKAGE = "llama-cpp-python"
INSTALL = 'pip install "edge-agent[llamacpp]"'

_NAMES = (
    "llama_backend_init", "llama_log_set", "llama_log_callback", "ggml_backend_sched_eval_callback",
    "llama_model_default_params", "llama_model_load_from_file", "llama_model_free", "llama_model_get_vocab",
    "llama_model_n_embd", "llama_model_n_layer", "llama_model_n_swa", "llama_model_is_recurrent",
    "llama_model_is_hybrid", "llama_model_has_encoder", "llama_vocab_n_tokens", "llama_context_default_params",
    "llama_init_from_model", "llama_free", "llama_n_batch", "llama_get_memory", "llama_memory_seq_rm",
    "llama_memory_seq_cp", "llama_memory_clear", "llama_decode", "llama_get_logits",
    "GGML_TYPE_F32", "GGML_TYPE_F16", "GGML_TYPE_Q8_0", "LLAMA_FLASH_ATTN_TYPE_DISABLED",
)  # fmt: skip
_FIELDS = {
    "llama_model_params": ("n_gpu_layers",),
    "llama_context_params": (
        "n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_threads", "n_threads_batch", "cb_eval", "type_k", "type_v",
        "flash_attn_type", "offload_kqv", "op_offload", "no_perf", "swa_full", "kv_unified",
    ),
    "llama_batch": ("n_tokens", "token", "embd", "pos", "n_seq_id", "seq_id", "logits"),
}  # fmt: skip
_LOG_ERROR = 4
_LOG_LINES = 4


@dataclass(frozen=True, slots=True)
class Binding:
    """The functions in use."""

    lib: ModuleType
    """`llama_cpp.llama_cpp`."""
    version: str
    tensor_name: Callable[[int], bytes]
    """Of a tensor by its address; holds the interpreter's lock, which costs less than letting it go."""
    tensor_bytes: Callable[[int], int]
    copy_tensor: Callable[[int, int, int, int], None]
    """(tensor, address to write to, first byte, bytes)."""
    said: deque[str]
    """The last errors that llama.cpp has logged; it prints nothing."""

    def reason(self) -> str:
        """What llama.cpp said of its last failure, which is then forgotten."""
        text = "; ".join(self.said) or "it does not say why"
        self.said.clear()
        return text


def is_installed() -> bool:
    """Whether the package is there. Whether it can be used, `binding` says, or ends the process."""
    return find_spec("llama_cpp") is not None


def require() -> None:
    """See that the package is there, without loading it: a library for another processor ends the process it is in.

    Raises:
        StageError: it is not installed.
    """
    if not is_installed():
        raise _missing()


@functools.cache
def binding() -> Binding:
    """Load llama.cpp and check it.

    Raises:
        StageError: llama-cpp-python is not installed, cannot be loaded, or its interface is another one.
    """
    try:
        lib = importlib.import_module("llama_cpp.llama_cpp")
        version = metadata.version(PACKAGE)
    except ImportError as error:
        raise _missing() from error
    except (OSError, RuntimeError, AttributeError) as error:
        raise _unusable(f"{PACKAGE} cannot be loaded ({error})") from error
    missing = [name for name in _NAMES if not hasattr(lib, name)]
    for structure, wanted in _FIELDS.items():
        fields = {field[0] for field in getattr(getattr(lib, structure, None), "_fields_", ())}
        missing += [f"{structure}.{name}" for name in wanted if name not in fields]
    if missing:
        raise _unusable(f"{PACKAGE} {version} is of another version than is needed: it lacks {', '.join(missing)}")
    defaults = lib.llama_context_default_params()
    if (defaults.n_seq_max, defaults.type_k, defaults.type_v) != (1, lib.GGML_TYPE_F16, lib.GGML_TYPE_F16):
        raise _unusable(f"{PACKAGE} {version} and the llama.cpp library it has loaded do not belong together")
    base = _ggml(Path(str(lib.__file__)).parent / "lib", version)
    said: deque[str] = deque(maxlen=_LOG_LINES)
    log = lib.llama_log_callback(lambda level, text, _: _note(said, level, text))
    _kept.append(log)
    lib.llama_log_set(log, ctypes.c_void_p(0))
    lib.llama_backend_init()
    return Binding(lib, version, base.ggml_get_name, base.ggml_nbytes, base.ggml_backend_tensor_get, said)


_kept: list[Any] = []
"""Callbacks that C holds a pointer to."""


def _ggml(folder: Path, version: str) -> ctypes.PyDLL:
    try:
        (path,) = {path.resolve() for path in folder.glob("*ggml-base*") if path.suffix in (".so", ".dylib", ".dll")}
        base = ctypes.PyDLL(str(path))
        base.ggml_get_name.restype, base.ggml_get_name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
        base.ggml_nbytes.restype, base.ggml_nbytes.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
        base.ggml_backend_tensor_get.restype = None
        base.ggml_backend_tensor_get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    except (OSError, ValueError, AttributeError) as error:
        raise _unusable(f"{PACKAGE} {version} has no ggml library that can be used in {folder} ({error})") from error
    return base


def _note(said: deque[str], level: int, text: bytes) -> None:
    if level == _LOG_ERROR and (line := text.decode("utf-8", "replace").strip()):
        said.append(line)


def _missing() -> StageError:
    return StageError(f"{PACKAGE} is not installed", where="engine llamacpp", hint=f"Run: {INSTALL}")


def _unusable(what: str) -> StageError:
    return StageError(what, where="engine llamacpp", hint=f"Install it again: {INSTALL} --upgrade --force-reinstall")
