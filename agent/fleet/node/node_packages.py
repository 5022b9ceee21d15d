"""The model packages a node works with: what is on its disk, and what it fetches from the rest of the fleet."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from agent.fleet.bulk.bulk_client import Source
from agent.fleet.bulk.fetch import FetchCancelledError, fetch, fetch_manifest
from agent.fleet.bulk.library import Library
from agent.fleet.bulk.pace import Pace
from agent.fleet.control.messages import Key, ModelRef, Neighbour
from agent.fleet.discovery.reach import reach
from pipeline.link import KeyPair
from shards.errors import PackageError, StageError
from shards.profile import measured_stages
from shards.progress import Progress
from shards.runtime import EngineName
from shards.store import PackageStore, Piece

Wanted = Callable[[PackageStore], Sequence[Piece]]
"""Says which pieces of a package are wanted."""

_TOKENIZER = "tokenizer/"

_PATIENCE_SECONDS = 2.0
"""For an order that overtakes the news that a holder has joined."""
_POLL_SECONDS = 0.05

_log = logging.getLogger(__name__)


def of_stage(first: int, end: int, engine: EngineName = "openvino-paged") -> Wanted:
    """What the stage of layers [first, end) needs: what describes the model to the engine, its ranges of the weights,
    and the tokenizer, which is small.

    The Wanted raises PackageError where the package does not have these layers, or nothing for the engine.
    """

    def wanted(store: PackageStore) -> Sequence[Piece]:
        tokenizer = [entry.path for entry in store.manifest.files if entry.path.startswith(_TOKENIZER)]
        return [
            *store.pieces_of_stage(first, end, engine),
            *(piece for path in tokenizer for piece in store.pieces(path)),
        ]

    return wanted


def of_measurement(engine: EngineName) -> Wanted:
    """What it takes to measure the parts of a model on an engine.

    The Wanted raises ConfigurationError where the model is too small for that, and PackageError as that of `of_stage`.
    """

    def wanted(store: PackageStore) -> Sequence[Piece]:
        stages = measured_stages(store.manifest.facts.layers, where=store.manifest.facts.name)
        return sorted({piece for stage in stages for piece in store.pieces_of_stage(*stage, engine)})

    return wanted


class NodePackages:
    """Gets pieces of packages. Any thread may ask.

    Args:
        library: Where packages are kept.
        keys: Of this node.
        neighbour: Finds a node of the fleet by its key.
    """

    def __init__(self, library: Library, keys: KeyPair, neighbour: Callable[[Key], Neighbour | None]) -> None:
        self.pace = Pace()
        """Of what is fetched."""
        self._library, self._keys, self._neighbour = library, keys, neighbour

    def obtain(self, model: ModelRef, wanted: Wanted, progress: Progress, cancel: threading.Event) -> PackageStore:
        """The package of a model, with the wanted pieces on disk. What is there already is not fetched.

        Raises:
            PackageError: nobody who has it can be reached, or the folder cannot be written.
            CapacityError: the disk has not the space.
            FetchCancelledError: `cancel` was set.
        """
        store = self._library.store(model.package_id)
        if store is None:
            manifest = fetch_manifest(model.package_id, self._sources(model, cancel), self._keys, cancel=cancel)
            store = self._library.create(manifest)
        pieces = wanted(store)
        if store.missing(pieces):
            fetch(
                store,
                pieces,
                self._sources(model, cancel),
                self._keys,
                progress=progress,
                cancel=cancel,
                pace=self.pace,
            )
        return store

    def repair(self, store: PackageStore, wanted: Wanted, progress: Progress) -> bool:
        """Whether wanted pieces are damaged. Those count as missing from now on, so that `obtain` fetches them."""
        if store.read_only:
            return False
        damaged = store.repair(wanted(store), progress)
        if damaged:
            _log.warning("%s: %d pieces are damaged and will be fetched again", store.folder, len(damaged))
        return bool(damaged)

    def _sources(self, model: ModelRef, cancel: threading.Event) -> list[Source]:
        """The holders that answer, best first."""
        patience = monotonic() + _PATIENCE_SECONDS
        while not (known := self._holders(model)):
            if cancel.wait(_POLL_SECONDS):
                raise FetchCancelledError("the download was cancelled before it had begun", where=model.name)
            if monotonic() >= patience:
                raise PackageError("no other node in the fleet has the model", where=model.name)
        with ThreadPoolExecutor(len(known), "reach") as pool:
            found = list(pool.map(_reached, known))
        sources = [source for source in found if isinstance(source, Source)]
        if not sources:
            failures = "; ".join(f"{node.name}: {error}" for node, error in zip(known, found, strict=True))
            raise PackageError(f"no node that has the model can be reached ({failures})", where=model.name)
        return sources

    def _holders(self, model: ModelRef) -> list[Neighbour]:
        keys = (key for key in model.holders if key != self._keys.public)
        return [neighbour for key in keys if (neighbour := self._neighbour(key)) is not None]


def _reached(node: Neighbour) -> Source | StageError:
    try:
        return Source(node.id, node.name, reach(node.addresses, node.bulk_port), node.bulk_port)
    except StageError as error:
        return error
