from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small tokenizer of each kind in tiny_tokenizers.KINDS, and its oracle."""
    folder = tmp_path_factory.mktemp("tokenizers")
    script = Path(__file__).with_name("tiny_tokenizers.py")
    subprocess.run([sys.executable, str(script), str(folder)], check=True, timeout=300)
    return folder
