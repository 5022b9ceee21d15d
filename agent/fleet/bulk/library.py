"""The packages of this PC, by the id of their content."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from shards.errors import PackageError
from shards.manifest import MANIFEST, Manifest
from shards.store import PackageStore, cannot_be_created

_ID = re.compile(r"[0-9a-f]{64}")


class Library:
    """Finds and makes packages. Any thread may ask.

    Args:
        folder: Where fetched packages are kept, each in a folder named by its id.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stores: dict[str, PackageStore] = {}
        """Manifests take a while to read, and the bulk server asks for every slice."""
        self._lock = threading.Lock()

    def lend(self, folder: Path) -> PackageStore:
        """Let others have a package from where it is; nothing is ever written there.

        Raises:
            PackageError: it is no package this version can read.
        """
        store = PackageStore(folder, read_only=True)
        with self._lock:
            self._stores[store.manifest.package_id] = store
        return store

    def store(self, package_id: str) -> PackageStore | None:
        """The package with this id if it is here, in whole or in part."""
        with self._lock:
            return self._find(package_id)

    def create(self, manifest: Manifest) -> PackageStore:
        """The package of this manifest, which is begun if it is not here.

        Raises:
            PackageError: the folder cannot be written.
        """
        package_id = manifest.package_id
        with self._lock:
            if store := self._find(package_id):
                return store
            folder = self.folder / package_id
            try:
                (folder / MANIFEST).unlink(missing_ok=True)  # one that could not be read, or was another's
            except OSError as error:
                raise cannot_be_created(folder, error) from error
            store = self._stores[package_id] = PackageStore.create(folder, manifest)
            return store

    def _find(self, package_id: str) -> PackageStore | None:
        store = self._stores.get(package_id)
        if store is not None and (store.folder / MANIFEST).exists():
            return store
        self._stores.pop(package_id, None)
        if not _ID.fullmatch(package_id):
            return None
        try:
            store = PackageStore(self.folder / package_id)
        except PackageError:
            return None
        if store.manifest.package_id != package_id:
            return None
        self._stores[package_id] = store
        return store
