from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agent.api.schemas import MAX_STOPS as API_STOPS
from agent.api.schemas import ChatRequest
from tui.chat.settings import MAX_STOPS, NUMBERS, Settings, as_fields, from_fields

_MESSAGES = [{"role": "user", "content": "x"}]
_EDGES = (-(2**63), -(2**63) + 1, -3, -2.5, -2, -1, -0.1, 0, 0.5, 1, 1.5, 2, 2.1, 3, 2**63 - 1, 2**63)


def is_accepted(make: type[Settings] | type[ChatRequest], fields: dict[str, Any]) -> bool:
    try:
        make(**fields)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number.name)
@given(value=st.one_of(st.sampled_from(_EDGES), st.integers(), st.floats(-4, 4)))
def test_the_limits_are_those_of_the_api(number: Any, value: float) -> None:
    fields = {number.name: value}
    assert is_accepted(Settings, fields) == is_accepted(ChatRequest, {"messages": _MESSAGES, **fields})


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number.name)
def test_the_defaults_that_are_shown_are_those_of_the_api(number: Any) -> None:
    default = ChatRequest.model_fields[number.name].default
    if default is None:
        assert not number.default[0].isdigit()
    else:
        assert number.default.split()[0] == f"{default:g}"


def test_stop_texts_are_limited_as_in_the_api() -> None:
    assert MAX_STOPS == API_STOPS
    assert is_accepted(Settings, {"stop": ("x",) * MAX_STOPS})
    assert not is_accepted(Settings, {"stop": ("x",) * (MAX_STOPS + 1)})
    assert not is_accepted(Settings, {"stop": ("",)})


def test_only_what_is_set_is_sent() -> None:
    assert Settings().as_request() == {}
    settings = Settings(temperature=0, seed=7, stop=("\n",))
    assert settings.as_request() == {"temperature": 0, "seed": 7, "stop": ["\n"]}
    assert ChatRequest(messages=_MESSAGES, **settings.as_request()).seed == 7


_SETTINGS = st.builds(
    Settings,
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0.001, 1),
    top_k=st.none() | st.integers(-1, 10**9),
    max_tokens=st.none() | st.integers(1, 10**9),
    seed=st.none() | st.integers(-(2**63) + 1, 2**63 - 1),
    presence_penalty=st.none() | st.floats(-2, 2),
    stop=st.lists(st.text("ab\\\n\t\r n", min_size=1, max_size=6), max_size=4).map(tuple),
)


@given(_SETTINGS)
def test_settings_survive_being_filled_in_and_their_file(settings: Settings) -> None:
    assert from_fields(as_fields(settings)) == (settings, {})
    assert Settings.model_validate_json(settings.model_dump_json()) == settings
    assert is_accepted(ChatRequest, {"messages": _MESSAGES, **settings.as_request()})


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("temperature", "2.5", "must be from 0 to 2, not 2.5"),
        ("temperature", "warm", "must be a number, from 0 to 2, not 'warm'"),
        ("temperature", "nan", "finite"),
        ("top_p", "0", "must be more than 0 and at most 1, not 0"),
        ("top_k", "-2", "must be -1 or more, not -2"),
        ("max_tokens", "0", "must be more than 0, not 0"),
        ("max_tokens", "1.5", "must be a whole number, more than 0, not '1.5'"),
        ("seed", str(2**63), f"not {2**63}"),
        ("stop", "\n".join("x" * 17), "at most 16 stop texts are possible, not 17"),
    ],
)
def test_what_is_wrong_is_said_of_its_field_and_the_others_hold(name: str, text: str, error: str) -> None:
    settings, errors = from_fields({"min_p": "0,25", name: text})
    assert settings == Settings(min_p=0.25)
    assert list(errors) == [name] and error in errors[name]


@given(st.dictionaries(st.sampled_from([number.name for number in NUMBERS] + ["stop"]), st.text(max_size=12)))
def test_anything_filled_in_gives_settings_or_errors(fields: dict[str, str]) -> None:
    settings, errors = from_fields(fields)
    assert set(errors) <= set(fields)
    assert is_accepted(ChatRequest, {"messages": _MESSAGES, **settings.as_request()})
