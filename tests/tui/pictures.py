"""Pictures of the screen: SVG files that were looked at once, and that what is drawn now must be like.

What is compared is which character stands where. Styles are compared as well where the picture was drawn by the same
Textual and Rich: others may choose other shades.
"""

from __future__ import annotations

import html
import re
from difflib import unified_diff
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parent / "snapshots"
_COLUMN = 12.2
"""Width of a character in Rich's SVG."""
_TEXT = re.compile(
    r'<text class="[^"]*" x="([\d.]+)" y="[\d.]+" [^>]*clip-path="url\(#[\w-]*?line-(\d+)\)">(.*?)</text>'
)
_RANDOM = re.compile(r"terminal-\d+")
_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
"""They are somewhere else on the internet."""


def check(name: str, svg: str, *, update: bool) -> None:
    """Compare a picture with the one that is kept, or keep it."""
    file = FOLDER / f"{name}.svg"
    drawn = _plain(svg)
    if update:
        file.parent.mkdir(exist_ok=True)
        file.write_text(drawn, "utf-8", newline="\n")
        return
    assert file.exists(), f"there is no {file.name} yet: look at it, and keep it with --update-pictures"
    kept = file.read_text("utf-8")
    difference = "\n".join(unified_diff(lines(kept), lines(drawn), "kept", "drawn", lineterm="", n=1))
    assert not difference, f"{file.name}\n{difference}"
    if kept.rpartition("<!--")[2] == drawn.rpartition("<!--")[2]:
        assert kept == drawn, f"{file.name}: the characters are the same, their styles are not"


def lines(svg: str) -> list[str]:
    """The characters of a picture."""
    rows: dict[int, list[str]] = {}
    for x, line, text in _TEXT.findall(svg):
        row = rows.setdefault(int(line), [])
        row.append(" " * (round(float(x) / _COLUMN) - len("".join(row))) + html.unescape(text).replace("\xa0", " "))
    return ["".join(rows.get(number, [])).rstrip() for number in range(max(rows, default=-1) + 1)]


def _plain(svg: str) -> str:
    """Without what differs from one drawing to the next, and with who drew it."""
    drawn_by = f"<!-- Textual {version('textual')}, Rich {version('rich')} -->"
    return _FONTS.sub("", _RANDOM.sub("terminal", svg)).rstrip() + f"\n{drawn_by}\n"
