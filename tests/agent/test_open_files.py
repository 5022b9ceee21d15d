from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from agent import open_files

limits = tuple(int(limit) for limit in sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
open_files.allow_many()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@pytest.mark.parametrize(("before", "after"), [((256, 512), (512, 512)), ((512, 512), (512, 512))])
def test_the_limit_is_raised_as_far_as_the_system_lets_it(before: tuple[int, int], after: tuple[int, int]) -> None:
    command = [sys.executable, "-c", PROGRAM, *map(str, before)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert tuple(map(int, done.stdout.split())) == after
