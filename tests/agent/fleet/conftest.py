"""What tests of nodes share."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psutil
import pytest
from ended import still_alive
from scripted_head import PATIENCE, ScriptedHead


@pytest.fixture
def nothing_stays() -> Iterator[None]:
    """No thread and no process is left of what a test has begun."""
    threads, processes = set(threading.enumerate()), set(psutil.Process().children(recursive=True))
    yield
    for thread in set(threading.enumerate()) - threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), thread
    assert not still_alive(set(psutil.Process().children(recursive=True)) - processes, PATIENCE)


@pytest.fixture
def head() -> Iterator[ScriptedHead]:
    """A head that lets everybody in."""
    with ScriptedHead() as head:
        yield head
