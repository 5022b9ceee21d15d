"""Whether Python and the packages are of the versions this program was made for."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata

from agent.doctor.check import Check

_TOPIC = "versions"
_OURS = "edge-agent"
_ENGINE = ("openvino", "openvino-tokenizers", "openvino-genai")
"""Built against each other, so of one release."""
_LLAMA = "llama-cpp-python"
_SECONDS = 60.0
_AGAIN = "pip install edge-agent[llamacpp]"
_TRY = """
import sys
from shards.errors import StageError
from shards.llamacpp.binding import binding
try:
    binding()
except StageError as error:
    print(error.what)
    sys.exit(1)
"""


@dataclass(frozen=True, slots=True)
class Package:
    """A package this program needs."""

    name: str
    wanted: str
    """As in the project's requirements, e.g. >=2.10."""
    found: str | None
    """The version that is installed."""
    fits: bool
    """True also where that can't be told."""


def check() -> list[Check]:
    """Look at this Python environment."""
    wanted_python = metadata.metadata(_OURS)["Requires-Python"]
    python = Package(
        "Python", wanted_python, platform.python_version(), _fits(wanted_python, platform.python_version())
    )
    checks = judge(metadata.version(_OURS), python, _packages(), _version(_LLAMA))
    if _version(_LLAMA) is not None and (fault := _llamacpp_fault()):
        checks[-1] = Check(_TOPIC, "warning", f"stages cannot run in llama.cpp: {fault}", f"{_AGAIN} --force-reinstall")
    return checks


def judge(own: str, python: Package, packages: tuple[Package, ...], llama: str | None) -> list[Check]:
    """What is missing or of a wrong version; `llama` is the version of llama-cpp-python, None where it is not there."""
    step = "pip install --upgrade edge-agent"
    checks = []
    for package in (python, *packages):
        if package.found is None:
            checks.append(Check(_TOPIC, "fault", f"{package.name} is not installed ({package.wanted} needed)", step))
        elif not package.fits:
            what = f"{package.name} is {package.found}, but {package.wanted} is needed"
            checks.append(Check(_TOPIC, "fault", what, step))
    engine = {package.name: package.found for package in packages if package.name in _ENGINE and package.found}
    if len({_release(version) for version in engine.values()}) > 1:
        found = ", ".join(f"{name} {version}" for name, version in engine.items())
        checks.append(
            Check(_TOPIC, "fault", f"{found} are of different releases", f"pip install --upgrade {' '.join(_ENGINE)}")
        )
    if not checks:
        what = (
            f"edge-agent {own}, Python {python.found}, OpenVINO {engine.get('openvino')}; {len(packages)} packages fit"
        )
        checks.append(Check(_TOPIC, "ok", what))
    if llama is None:
        what, step = (
            "llama.cpp is not installed; only models that OpenVINO can't read need it",
            _AGAIN,
        )
        checks.append(Check(_TOPIC, "ok", what, step))
    else:
        checks.append(Check(_TOPIC, "ok", f"{_LLAMA} {llama}"))
    return checks


def _llamacpp_fault() -> str | None:
    """Why llama.cpp, though installed, cannot be used. A library for another processor ends the process it is in."""
    command = [sys.executable, "-P", "-c", _TRY]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace",
            timeout=_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    said = (done.stdout or done.stderr).strip().splitlines()
    return said[-1] if said else f"its process ended with code {done.returncode}"


def _packages() -> tuple[Package, ...]:
    """What is needed without extras."""
    found = []
    for requirement in metadata.requires(_OURS) or ():
        text, _, condition = requirement.partition(";")
        if "extra" in condition:
            continue
        text = text.strip()
        end = next((i for i, character in enumerate(text) if character in "<>=!~ ["), len(text))
        name, wanted = text[:end], text[end:].partition("]")[2] if text[end : end + 1] == "[" else text[end:]
        version = _version(name)
        found.append(Package(name, wanted.strip(), version, version is not None and _fits(wanted, version)))
    return tuple(found)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _fits(wanted: str, version: str) -> bool:
    try:
        from packaging.specifiers import SpecifierSet  # there with pip and most others, but not a requirement of ours
    except ImportError:
        return True
    return SpecifierSet(wanted).contains(version, prereleases=True)


def _release(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:3])
