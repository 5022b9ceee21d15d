from __future__ import annotations

import logging
import subprocess
import sys

from agent.recent_log import LINES, LONGEST_LINE, RecentLog


def record(message: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("agent.x", level, __file__, 1, message, (), None)


def test_the_newest_lines_are_kept() -> None:
    log = RecentLog()
    for number in range(LINES + 10):
        log.handle(record(f"line {number}"))
    lines = log.lines()
    assert len(lines) == LINES
    assert lines[0].endswith("INFO agent.x: line 10") and lines[-1].endswith(f"line {LINES + 9}")


def test_long_and_many_lines_are_cut() -> None:
    log = RecentLog()
    log.handle(record("x" * 10 * LONGEST_LINE))
    log.handle(record("first\nsecond\x85third"))
    lines = log.lines()
    assert [len(lines[0]), lines[2], lines[3]] == [LONGEST_LINE, "second", "third"]
    log.handle(record("\n".join(map(str, range(10 * LINES)))))
    assert log.lines()[-1] == str(10 * LINES - 1) and len(log.lines()) == LINES


def test_a_trace_is_kept_too() -> None:
    log = RecentLog()
    try:
        raise ZeroDivisionError("a defect")
    except ZeroDivisionError:
        entry = record("it failed", logging.ERROR)
        entry.exc_info = sys.exc_info()
        log.handle(entry)
    assert "it failed" in log.lines()[0] and log.lines()[-1] == "ZeroDivisionError: a defect"


PROGRAM = """
import logging
from agent import recent_log
logging.getLogger("agent.before").warning("before")
recent_log.keep()
recent_log.keep()
logging.getLogger("agent.a").info("news")
logging.getLogger("pipeline.b").warning("trouble")
logging.getLogger("zeroconf").info("chatter")
print(*(line.partition(": ")[2] for line in recent_log.lines()), sep=",")
"""


def test_warnings_are_printed_as_before_and_news_are_not() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == "news,trouble\n"
    assert done.stderr == "before\ntrouble\n"
