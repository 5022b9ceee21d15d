"""One command from a fresh clone to an answer: installs into .venv beside this project, then runs `edge-agent demo`.

    python3 scripts/demo.py
    python3 scripts/demo.py --prompt "What is the capital of France?"

Options are those of `edge-agent demo`; --help shows them.
"""

from __future__ import annotations

import sys

import _environment


def main() -> int:
    """Prepare, run, and give the demo's exit code."""
    try:
        _environment.prepare()
    except KeyboardInterrupt:
        return 130
    return _environment.run([_environment.program("edge-agent"), "demo", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
