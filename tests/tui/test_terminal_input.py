"""Pastes, as terminals send them."""

from __future__ import annotations

import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from textual import events
from textual._xterm_parser import XTermParser
from textual.drivers import headless_driver

from tui.terminal_input import PasteGuard, guard_pastes

_COLOURED = "\x1b[31mred\x1b[0m\r\x11 and more than thirty-two characters\rend\x1b["
_PASTE = f"\x1b[200~{_COLOURED}\x1b[201~"


def _parser() -> Any:
    driver = type("Driver", (headless_driver.HeadlessDriver,), {"__module__": "reads_a_terminal"})
    module: Any = ModuleType(driver.__module__)
    module.XTermParser = XTermParser
    sys.modules[driver.__module__] = module
    guard_pastes(driver)
    guard_pastes(driver)  # a second time is nothing
    return module.XTermParser()


@given(st.lists(st.integers(0, len(_PASTE)), max_size=8))
def test_pasted_escape_codes_are_no_keys(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(_PASTE)]
    parser = _parser()
    said = [event for start, stop in pairwise(ends) if start < stop for event in parser.feed(_PASTE[start:stop])]
    said += list(parser.feed("x"))
    paste, key = said
    assert isinstance(paste, events.Paste)
    assert paste.text == _COLOURED.replace("\x1b", "\N{REPLACEMENT CHARACTER}")
    assert isinstance(key, events.Key)
    assert key.key == "x"


@given(st.lists(st.sampled_from(["\x1b", "\x1b[A", "a", "\x1b[20", "\x1bOP", "[", "~"]), max_size=12))
def test_nothing_else_is_changed_or_kept_back(keys: list[str]) -> None:
    guard = PasteGuard()
    assert [guard(key) for key in keys] == keys


def test_a_driver_that_reads_no_terminal_is_left_alone() -> None:
    guard_pastes(headless_driver.HeadlessDriver)
    assert not hasattr(headless_driver, "XTermParser")
