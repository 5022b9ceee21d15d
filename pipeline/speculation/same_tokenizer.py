"""Whether two packages mean the same by their token ids."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from pipeline.tokenizer import Tokenizer
from shards.errors import ConfigurationError
from shards.manifest import DETOKENIZER, TOKENIZER, Manifest


def check(package: Path, manifest: Manifest, tokenizer: Tokenizer, draft: Path, draft_manifest: Manifest) -> None:
    """See that a draft's token ids are those of a model: by the hashes of their files, otherwise id by id.

    A model may have more ids than the draft, which never guesses them then, and the other way round.

    Args:
        package: The model's package.
        manifest: Of the model.
        tokenizer: Of the model.
        draft: The draft's package.
        draft_manifest: Of the draft.

    Raises:
        ConfigurationError: an id means something else; names both packages.
        PackageError: the draft's tokenizer cannot be read.
    """
    if _files(manifest) == _files(draft_manifest):
        return
    count = min(manifest.facts.vocabulary, draft_manifest.facts.vocabulary)
    ids = [[token] for token in range(count)]
    mine = tokenizer.decode_bytes(ids, skip_special=False)
    others = Tokenizer.load(draft).decode_bytes(ids, skip_special=False)
    different = [token for token in range(count) if mine[token] != others[token]]
    if not different:
        return
    token = different[0]
    says = f"token {token} is {_shown(others[token])} there and {_shown(mine[token])} here"
    raise ConfigurationError(
        f"{draft_manifest.facts.name} ({draft}) cannot draft for {manifest.facts.name} ({package}): their tokenizers "
        f"differ in {len(different)} of {count} token ids ({says})",
        where="--draft",
        hint="Take a smaller model of the same family.",
    )


def _files(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """Hashes of what the ids mean."""
    graphs = (TOKENIZER, DETOKENIZER)
    paths = {str(PurePosixPath(graph).with_suffix(end)) for graph in graphs for end in (".xml", ".bin")}
    return {entry.path: entry.pieces for entry in manifest.files if entry.path in paths}


def _shown(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace"))
