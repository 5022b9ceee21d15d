from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from agent import plots
from shards.errors import ConfigurationError

POINTS = {"ours": [(1.0, 10.0), (64.0, 90.0), (8.0, 60.0)], "theirs [x]": [(1.0, 9.0)], "none": []}


@pytest.mark.parametrize("log_x", [False, True])
def test_lines_and_panels_are_png_files(tmp_path: Path, log_x: bool) -> None:
    plots.lines(tmp_path / "one.png", "throughput", "users", "tok/s", POINTS, log_x=log_x)
    panel = plots.Panel("throughput", "users", "tok/s", POINTS)
    plots.panels(tmp_path / "two.PNG", "both", [panel, panel], log_x=log_x)
    for name in ("one.png", "two.PNG"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "what"), [("a.jpg", "a picture is a .png file"), ("none/a.png", "there is no folder")]
)
def test_where_no_picture_can_be(tmp_path: Path, name: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        plots.check(tmp_path / name)


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"edge-agent\[plots\]"):
        plots.lines(tmp_path / "a.png", "", "", "", POINTS)
    assert importlib.util.find_spec("matplotlib") is not None
