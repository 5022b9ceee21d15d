"""Source: a Hugging Face folder, or a model name on the hub. Code that comes with a model is never run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from exporters import facts
from exporters.sources import PreparedSource, Weights, child, compression
from shards.errors import ExportError
from shards.progress import Progress

_TOKENIZER, _DETOKENIZER = "openvino_tokenizer.xml", "openvino_detokenizer.xml"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
_WANTED = ["*.json", "*.safetensors", "*.jinja", *_TOKENIZER_FILES, "merges.txt"]
"""What is fetched of a model: no Python, no pickles."""


def prepare(source: str, workdir: Path, weights: Weights | None, progress: Progress) -> PreparedSource:
    """Convert a Hugging Face model into a stateful graph and its tokenizer, in `workdir`.

    Args:
        source: A folder with config.json, or `owner/name` on the hub.
        workdir: An empty folder.
        weights: How to store the weights: None is int4, `keep` the precision of the source.
        progress: Told of each phase.

    Raises:
        ExportError: the model cannot be fetched or converted, or has no tokenizer.
        GraphError: the graph is not a decoder that can be cut into layers.
    """
    compression.require_extra(source)
    answer = child.run(
        "huggingface",
        {"source": source, "workdir": str(workdir), "weights": weights or "int4"},
        workdir / "conversion.log",
        progress,
        where=source,
        hint="Is it a language model that optimum-intel converts? If not, a GGUF of it may work.",
    )
    shutil.rmtree(workdir / "original", ignore_errors=True)
    graph, tokenizer = Path(answer["graph"]), Path(answer["tokenizer"])
    folder = Path(answer["folder"])
    return PreparedSource(
        graph=graph,
        weights=graph.with_suffix(".bin"),
        tokenizer=tokenizer,
        detokenizer=tokenizer.with_name(_DETOKENIZER),
        facts=facts.read(graph, name=_name(source), folder=folder, tokenizer=tokenizer),
        description={"kind": "Hugging Face", "path": source, **answer.get("agreement", {})},
    )


def convert(source: str, workdir: str, weights: Weights, progress: Progress) -> dict[str, Any]:
    """Child job: fetch a model if need be, convert its tokenizer, trace it, compress it."""
    work = Path(workdir)
    folder = Path(source) if Path(source).is_dir() else _fetch(source, progress)
    _check_files(folder, source)
    progress("converting the tokenizer", 0, 1)
    tokenizer = _convert_tokenizer(folder, work / "tokenizer", source)
    progress("converting to OpenVINO", 0, 1)
    target = work / "graph" / compression.GRAPH
    answer: dict[str, Any] = {"graph": str(target), "tokenizer": str(tokenizer), "folder": str(folder)}
    if weights in ("int4", "int8"):
        original = compression.graph_of_folder(folder, work / "original", None)
        answer["agreement"] = compression.compress_and_compare(original, target, weights, tokenizer, progress)
    else:
        compression.graph_of_folder(folder, target.parent, "fp16" if weights == "fp16" else None)
    return answer


def _fetch(name: str, progress: Progress) -> Path:
    """Bring a model from the hub into Hugging Face's own cache; what is there already is not fetched again.

    Raises:
        ExportError: there is no such model, it may not be read, or the hub cannot be reached.
    """
    import httpx
    from huggingface_hub import errors, snapshot_download
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        """Reports bytes instead of drawing."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            options["disable"] = False  # by default it is off without a terminal
            super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]

        def display(self, *_: Any, **__: Any) -> None:
            if self.unit == "B" and self.total:
                progress(f"downloading {name}", min(self.n, self.total), self.total)

    progress(f"looking up {name}", 0, 1)
    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED, tqdm_class=Bar))
    except errors.GatedRepoError:
        what, hint = "the model is gated", "Accept its terms on the hub, then log in with: hf auth login"
    except errors.RepositoryNotFoundError:
        what, hint = "there is no such folder, and no such model on the hub", "Check the name; log in if it is private."
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, httpx.HTTPError, OSError) as error:
        what = f"there is no such folder, and the hub cannot be reached ({_reason(error)})"
        hint = "Check the connection, or give a folder that holds the model."
    raise ExportError(what, where=name, hint=hint)


def _reason(error: BaseException) -> str:
    """The root of a chain of errors in one line: those around it say only that something failed."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _check_files(folder: Path, source: str) -> None:
    """Look for what a conversion needs before anything large is loaded.

    Raises:
        ExportError: there is no tokenizer, or there are no weights that can be read.
    """
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ExportError(
            f"the tokenizer is missing: none of {', '.join(_TOKENIZER_FILES)} is there",
            where=source,
            hint="Copy the tokenizer's files beside config.json.",
        )
    if not any(folder.glob("*.safetensors")):
        raise ExportError(
            "there are no weights in the safetensors format; others can carry code and are not read",
            where=source,
            hint="Look for a safetensors version of the model.",
        )


def _convert_tokenizer(folder: Path, target: Path, source: str) -> Path:
    """Write the tokenizer and the detokenizer graph to `target`; returns the tokenizer.

    Raises:
        ExportError: OpenVINO has no counterpart of it.
    """
    import openvino as ov
    import transformers
    from openvino_tokenizers import convert_tokenizer

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        made = convert_tokenizer(tokenizer, with_detokenizer=True)
    except Exception as error:  # whatever the tokenizer's own reader raises
        raise ExportError(
            f"the tokenizer cannot be converted ({type(error).__name__}: {_reason(error)})",
            where=source,
            hint="Try a GGUF of the model.",
        ) from error
    target.mkdir()
    for model, name in zip(made, (_TOKENIZER, _DETOKENIZER), strict=True):
        ov.save_model(model, target / name, compress_to_fp16=False)
    return target / _TOKENIZER


def _name(source: str) -> str:
    """A model's name: the folder's, or what comes after the owner."""
    return Path(source).resolve().name if Path(source).is_dir() else source.rpartition("/")[2]
