from __future__ import annotations

import pytest

from agent.doctor import versions
from agent.doctor.versions import Package, judge

PYTHON = Package("Python", ">=3.11", "3.12.1", fits=True)
OPENVINO = Package("openvino", "<2027,>=2026.4", "2026.4.1", fits=True)
GENAI = Package("openvino-genai", "<2027,>=2026.4", "2026.4.1.0", fits=True)
RICH = Package("rich", ">=14", "14.1.0", fits=True)


def test_all_fits() -> None:
    checks = judge("0.1.0", PYTHON, (OPENVINO, GENAI, RICH), "0.3.16")
    assert [check.status for check in checks] == ["ok", "ok"]
    assert "OpenVINO 2026.4.1" in checks[0].what
    assert checks[1].what == "llama-cpp-python 0.3.16"


def test_llama_cpp_is_optional() -> None:
    check = judge("0.1.0", PYTHON, (OPENVINO,), None)[-1]
    assert (check.status, check.next_step) == ("ok", "pip install edge-agent[llamacpp]")


@pytest.mark.parametrize(
    ("python", "packages", "words"),
    [
        (Package("Python", ">=3.11", "3.10.4", fits=False), (OPENVINO,), "Python is 3.10.4, but >=3.11 is needed"),
        (PYTHON, (OPENVINO, Package("rich", ">=14", None, fits=False)), "rich is not installed (>=14 needed)"),
        (PYTHON, (OPENVINO, Package("rich", ">=14", "9.1", fits=False)), "rich is 9.1, but >=14 is needed"),
        (PYTHON, (OPENVINO, Package("openvino-genai", ">=2026.4", "2026.5.0.0", fits=True)), "different releases"),
    ],
)
def test_what_does_not_fit(python: Package, packages: tuple[Package, ...], words: str) -> None:
    fault, _ = judge("0.1.0", python, packages, None)
    assert fault.status == "fault"
    assert words in fault.what
    assert "pip install" in (fault.next_step or "")


def test_requirements_are_read_as_they_are_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = [
        "openvino<2027,>=2026.4",
        "uvicorn[standard]>=0.34",
        "numpy",
        'gguf>=0.17; extra == "export"',
        "no-such>=1",
    ]
    installed = {"openvino": "2026.3.0", "uvicorn": "0.35", "numpy": "2.1"}
    monkeypatch.setattr(versions.metadata, "requires", lambda _: declared)
    monkeypatch.setattr(versions, "_version", installed.get)
    assert versions._packages() == (
        Package("openvino", "<2027,>=2026.4", "2026.3.0", fits=False),
        Package("uvicorn", ">=0.34", "0.35", fits=True),
        Package("numpy", "", "2.1", fits=True),
        Package("no-such", ">=1", None, fits=False),
    )


def test_this_environment_fits() -> None:
    checks = versions.check()
    assert [check.status for check in checks] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("tried", "words"),
    [
        ("import os; os.abort()", "stages cannot run in llama.cpp: its process ended with code"),
        ("print('it lacks llama_free'); raise SystemExit(1)", "stages cannot run in llama.cpp: it lacks llama_free"),
    ],
)
def test_a_llama_cpp_that_is_there_and_does_not_work_is_told(
    tried: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "_version", lambda name: "1.0")
    monkeypatch.setattr(versions, "_TRY", tried)
    check = versions.check()[-1]
    assert check.status == "warning" and words in check.what
    assert check.next_step == "pip install edge-agent[llamacpp] --force-reinstall"
