"""For all tests of the screen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from told_head import ToldHead, told_head


@pytest.fixture
def head() -> Iterator[ToldHead]:
    """A head that a test tells what to answer."""
    with told_head() as running:
        yield running
