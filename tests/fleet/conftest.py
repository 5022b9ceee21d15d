"""The lab for tests: `from lab_parts import Lab`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]  # the lab is made of Linux network namespaces
