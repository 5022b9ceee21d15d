from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from sharing import made_once

_SCRIPT = Path(__file__).with_name("tiny_tokenizers.py")


@pytest.fixture(scope="session")
def tiny_tokenizers() -> Path:
    """A folder with a small tokenizer of each kind in tiny_tokenizers.KINDS, and its oracle. Read only."""
    key = hashlib.sha256(_SCRIPT.read_bytes())
    for package in ("tokenizers", "transformers", "openvino", "openvino-tokenizers"):
        key.update(version(package).encode())

    def make(folder: Path) -> None:
        subprocess.run([sys.executable, str(_SCRIPT), str(folder)], check=True, timeout=300)

    return made_once("tokenizers", key.hexdigest()[:16], make)
