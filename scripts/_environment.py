"""What demo.py and test.py share: a virtual environment beside the sources, and running commands in it.

Standard library only, and importable by old Pythons, so that they are told what is missing instead of tripping.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
ENVIRONMENT = PROJECT / ".venv"
_STAMP = ENVIRONMENT / "edge-agent.json"
_OLDEST = (3, 11)
_GRACE_SECONDS = 2.5
_POLL_SECONDS = 0.2


def prepare(extras: tuple[str, ...] = ()) -> None:
    """Make the environment ready: installed on first use, left alone as long as pyproject.toml is the same."""
    _check_python()
    wanted = {
        "project": str(PROJECT),
        "python": sys.version,
        "pyproject": hashlib.sha256((PROJECT / "pyproject.toml").read_bytes()).hexdigest(),
        "extras": sorted(extras),
    }
    installed = _read_stamp()
    if installed and python().exists():
        extras_there = set(installed.get("extras", ()))
        if {**installed, "extras": None} == {**wanted, "extras": None} and extras_there.issuperset(extras):
            return
    if not installed or installed.get("python") != sys.version or not python().exists():
        _create()
    else:
        wanted["extras"] = sorted({*extras, *installed.get("extras", ())})
    _STAMP.unlink(missing_ok=True)  # written again when the installation is whole
    target = str(PROJECT) + (f"[{','.join(wanted['extras'])}]" if wanted["extras"] else "")
    _say(f"Installing edge-agent and what it needs into {ENVIRONMENT} (takes minutes the first time)")
    began = time.monotonic()
    code = run([python(), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--editable", target])
    if code:
        _say("The installation failed: pip says above what it could not get. Run the same command again to go on.")
        raise SystemExit(code)
    _STAMP.write_text(json.dumps(wanted, indent=1), "utf-8")
    _say(f"Installed in {time.monotonic() - began:.0f} s")


def python() -> Path:
    """The environment's interpreter."""
    return program("python")


def program(name: str) -> Path:
    """A command that is installed in the environment."""
    return ENVIRONMENT / (f"Scripts/{name}.exe" if os.name == "nt" else f"bin/{name}")


def run(command: list[object], cwd: Path | None = None) -> int:
    """Run a command to its end and give its exit code, as a shell would count it.

    Ctrl-C reaches the command by itself, since it shares our terminal; here it only must not make us leave first.
    One that stays is asked to end after a moment, and is ended when it does not. SIGTERM is handed on.
    """
    heard: list[int] = []
    # who ignores Ctrl-C means the command to do so, too
    heeds = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    numbers = (signal.SIGINT, signal.SIGTERM) if heeds else (signal.SIGTERM,)
    before = {number: signal.signal(number, lambda number, _: heard.append(number)) for number in numbers}
    try:
        code = _wait(subprocess.Popen([str(part) for part in command], cwd=cwd), heard)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _wait(process: subprocess.Popen[bytes], heard: list[int]) -> int:
    """For the end of the command, seeing to the signals that are heard meanwhile."""
    means = [process.kill, process.terminate]
    since: float | None = None
    while True:
        try:
            return process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if signal.SIGTERM in heard:
                heard.remove(signal.SIGTERM)
                process.terminate()
            if signal.SIGINT in heard and since is None:
                since = time.monotonic()
            if means and since is not None and time.monotonic() - since > _GRACE_SECONDS:
                means.pop()()
                since = time.monotonic()


def _check_python() -> None:
    if sys.version_info < _OLDEST:
        raise SystemExit(
            "edge-agent needs Python {}.{} or newer; this is {} ({}).\n"
            "Install a newer one and start this script with it, for example: python3.12 {}".format(
                *_OLDEST, sys.version.split()[0], sys.executable, " ".join(sys.argv)
            )
        )
    if sys.maxsize < 2**32:
        raise SystemExit(f"edge-agent needs a 64-bit Python; {sys.executable} is a 32-bit one.")


def _create() -> None:
    """Make the environment anew; a half-made one goes first."""
    if ENVIRONMENT.exists():
        shutil.rmtree(ENVIRONMENT)
    _say(f"Creating a virtual environment in {ENVIRONMENT}")
    if run([sys.executable, "-m", "venv", ENVIRONMENT]):
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        raise SystemExit(
            "Python could not create a virtual environment. On Debian and Ubuntu install the module for it first:"
            f" apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        )


def _read_stamp() -> dict[str, object] | None:
    """What the last whole installation was of; None if there was none."""
    try:
        stamp = json.loads(_STAMP.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


def _say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)
