"""One command from a fresh clone to test results: installs into .venv beside this project, then checks everything.

    python3 scripts/test.py                    ruff, mypy and the whole test suite
    python3 scripts/test.py tests/agent -k sse pytest alone, with these arguments

The exit code is 0 only when all of it passed.
"""

from __future__ import annotations

import sys

import _environment

_ON_ALL = ["-n", "auto", "--dist", "worksteal", "--durations=25"]


def main(arguments: list[str]) -> int:
    """Prepare, run the checks, and give the first exit code that is not 0."""
    if arguments in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    try:
        _environment.prepare(("dev", "export", "llamacpp"))
    except KeyboardInterrupt:
        return 130
    module = [_environment.python(), "-m"]
    failed: dict[str, int] = {}
    for check in () if arguments else (["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]):
        print(f"== {' '.join(check)}", file=sys.stderr, flush=True)
        code = _environment.run([*module, *check], cwd=_environment.PROJECT)
        if code:
            failed[" ".join(check)] = code
        if code == 130:
            return code
    # without arguments on all processors: whoever is done takes tests from the others
    code = _environment.run([*module, "pytest", *(arguments or _ON_ALL)], cwd=_environment.PROJECT)
    if code:
        failed["pytest"] = code
    if failed:
        print(f"== failed: {', '.join(failed)}", file=sys.stderr, flush=True)
    return next(iter(failed.values()), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
