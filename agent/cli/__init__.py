"""The command `edge-agent`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; ends the process with 0, 1 (an error it explains), 2 (usage) or 128 + a signal's number."""
    try:
        from agent.cli import interruption

        interruption.install()  # before anything else, so that Ctrl-C is harmless at once
        from agent.cli import output
        from agent.cli.app import app
        from shards.errors import EdgeAgentError
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        output.never_fail_to_encode()
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if code := interruption.exit_code():  # native code that Ctrl-C interrupts raises what it likes
            sys.exit(code)
        if not isinstance(error, EdgeAgentError | OSError):
            raise
        output.show_error(error, as_json="--json" in sys.argv)
        sys.exit(1)
