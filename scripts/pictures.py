"""Draws the pictures in the README: a head and a node of a lab, with a stage each, and a session at the head's screen.

    python3 scripts/pictures.py docs

Linux only, like the lab. Needs an environment that has edge-agent (`python3 scripts/demo.py` makes one).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab_parts import Lab, LabError
from lab_parts.agents import Agents

from agent.cli import output
from agent.cli.demo import demo_package

_SESSION = Path(__file__).with_name("lab_parts") / "session.py"
_SECONDS = 300.0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path, help="where chat.svg and fleet.svg go")
    parser.add_argument("--package", type=Path, help="the model (default: that of edge-agent demo)")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with output.progress_bars(quiet=False) as progress, Lab(2) as lab:
            agents = Agents(lab)
            package = arguments.package or demo_package(progress)
            head = agents.serve(package, "--stages", "2", "--no-replicas")
            node = agents.join(1, "--token-file", agents.token())
            agents.wait_until("the model runs", lambda sight: len(sight.chains) == 1, _SECONDS, [head, node])
            done = lab.hosts[0].run([sys.executable, _SESSION, folder], timeout=_SECONDS)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(done.stderr, file=sys.stderr, end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
