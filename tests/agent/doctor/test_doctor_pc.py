"""Processor, memory, power and clock."""

from __future__ import annotations

import pytest

from agent.doctor import clock, memory, power, processor
from agent.doctor.memory import Memory
from agent.doctor.processor import Processor
from agent.fleet.control.messages import Condition
from agent.fleet.node.hardware import RESERVE_BYTES


@pytest.mark.parametrize(
    ("machine", "flags", "status", "words"),
    [
        ("x86_64", {"avx2", "avx512f", "avx512_vnni", "amx_tile", "amx_int8"}, "ok", "AMX"),
        ("amd64", {"avx2", "avx_vnni"}, "ok", "VNNI"),
        ("x86_64", {"avx2", "avx512f"}, "ok", "AVX-512"),
        ("x86_64", {"avx2"}, "ok", "AVX2"),
        ("x86_64", {"sse4_2", "hypervisor"}, "warning", "virtual machine"),
        ("x86_64", {"sse4_2"}, "warning", "no AVX2"),
        ("x86_64", None, "ok", "does not tell"),
        ("aarch64", {"asimd"}, "ok", "aarch64"),
    ],
)
def test_processor(machine: str, flags: set[str] | None, status: str, words: str) -> None:
    check = processor.judge(Processor(machine, None if flags is None else frozenset(flags)))
    assert check.status == status
    assert words in check.what
    assert (check.next_step is not None) == (status == "warning")


GB = 10**9


@pytest.mark.parametrize(
    ("facts", "statuses"),
    [
        (Memory(16 * GB, 8 * GB, 0, 0), ["ok"]),
        (Memory(16 * GB, 8 * GB, 4 * GB, GB), ["ok", "ok"]),
        (Memory(16 * GB, RESERVE_BYTES - 1, 0, 0), ["fault"]),
        (Memory(16 * GB, 2 * GB, 8 * GB, 3 * GB), ["ok", "warning"]),
        (Memory(64 * GB, 40 * GB, 0, 0, limit=4 * GB), ["ok", "warning"]),
    ],
)
def test_memory(facts: Memory, statuses: list[str]) -> None:
    checks = memory.judge(facts)
    assert [check.status for check in checks] == statuses
    assert all(check.next_step for check in checks if check.status != "ok")


def test_memory_figures() -> None:
    assert memory.judge(Memory(16 * GB, 8 * GB + RESERVE_BYTES, 0, 0))[0].what == (
        "9.1 GB of 16.0 GB free; stages may take 8.0 GB unless --memory says otherwise"
    )


@pytest.mark.parametrize(
    ("battery", "on_mains", "status"), [(None, True, "ok"), (0.8, True, "ok"), (0.35, False, "warning")]
)
def test_power(battery: float | None, on_mains: bool, status: str) -> None:
    check = power.judge(Condition(memory_free=1, memory_allowed=1, disk_free=1, battery=battery, on_mains=on_mains))
    assert check.status == status
    assert (battery == 0.35) == ("35%" in check.what)


def test_clock() -> None:
    installed = 1_790_000_000.0
    assert clock.judge(installed + 10**8, installed).status == "ok"
    assert clock.judge(installed - 3600, installed).status == "ok"
    unset = clock.judge(0.0, installed)
    assert unset.status == "warning"
    assert "1970" in unset.what


@pytest.mark.parametrize(
    ("seconds", "status", "words"),
    [(0.4, "ok", "agrees"), (-59, "ok", "agrees"), (7200, "warning", "ahead of"), (-7200, "warning", "behind")],
)
def test_the_heads_clock(seconds: float, status: str, words: str) -> None:
    check = clock.judge_difference(seconds)
    assert check.status == status
    assert words in check.what


def test_this_pc_can_be_looked_at() -> None:
    assert [check.topic for check in processor.check()] == ["processor"]
    assert {check.topic for check in memory.check()} == {"memory"}
    assert [check.topic for check in power.check()] == ["power"]
    assert [check.status for check in clock.check()] == ["ok"]
