"""Which tokens the columns of the logits are, where a draft's head knows only some of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shards import manifest as manifests
from shards.errors import PackageError
from shards.manifest import DRAFT_VOCABULARY, ModelFacts


def token_ids(package: Path) -> NDArray[np.int32] | None:
    """Ascending token id of each column of a package's logits; None: column i is token i.

    Raises:
        PackageError: the package or the file of ids cannot be read, or the ids make no sense.
    """
    facts = manifests.read(package).facts
    if facts.draft_vocabulary is None:
        return None
    path = package / DRAFT_VOCABULARY
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PackageError(f"the file cannot be read ({error.strerror or error})", where=str(path)) from error
    return parse(data, facts, where=str(path))


def parse(data: bytes, facts: ModelFacts, *, where: str) -> NDArray[np.int32]:
    """Check the ids that were read from `where`.

    Raises:
        PackageError: they are not those of a head of these facts.
    """
    if len(data) != 4 * facts.logits:
        raise PackageError(f"{4 * facts.logits} bytes were expected, {len(data)} are there", where=where)
    ids = np.frombuffer(data, "<i4").astype(np.int32)
    if ids[0] < 0 or ids[-1] >= facts.vocabulary or (np.diff(ids) <= 0).any():
        raise PackageError(
            f"the token ids are not ascending in 0..{facts.vocabulary - 1}", where=where, hint="Export the draft again."
        )
    return ids
