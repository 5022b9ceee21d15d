"""How an answer is to be sampled. The limits are those of the head's API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from tui.chat.text import MendedText

MAX_STOPS = 16
_LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`; None: there is no end. `above`: `low` itself is not among them."""

    low: float
    high: float | None = None
    above: bool = False

    def __str__(self) -> str:
        if self.high is None:
            return f"more than {self.low}" if self.above else f"{self.low} or more"
        return f"more than {self.low} and at most {self.high}" if self.above else f"from {self.low} to {self.high}"

    def check(self, value: float) -> float:
        """The value, if it is among them."""
        too_low = value <= self.low if self.above else value < self.low
        if too_low or (self.high is not None and value > self.high):
            given = str(value).removesuffix(".0")
            raise PydanticCustomError("range", "must be {range}, not {given}", {"range": str(self), "given": given})
        return value


_TEMPERATURE = Range(0, 2)
_TOP_P = Range(0, 1, above=True)
_TOP_K = Range(-1)
_MIN_P = Range(0, 1)
_MAX_TOKENS = Range(0, above=True)
_SEED = Range(-_LARGEST_SEED, _LARGEST_SEED)
_REPETITION = Range(0, 2, above=True)
_PENALTY = Range(-2, 2)


def _check_stops(stops: tuple[str, ...]) -> tuple[str, ...]:
    if len(stops) > MAX_STOPS:
        raise PydanticCustomError(
            "stops", "at most {most} stop texts are possible, not {given}", {"most": MAX_STOPS, "given": len(stops)}
        )
    if not all(stops):
        raise PydanticCustomError("stops", "a stop text must not be empty")
    return stops


class Settings(BaseModel):
    """Fields of a request; None is not sent, so the head's own default holds."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    temperature: Annotated[float, AfterValidator(_TEMPERATURE.check)] | None = None
    top_p: Annotated[float, AfterValidator(_TOP_P.check)] | None = None
    top_k: Annotated[int, AfterValidator(_TOP_K.check)] | None = None
    min_p: Annotated[float, AfterValidator(_MIN_P.check)] | None = None
    max_tokens: Annotated[int, AfterValidator(_MAX_TOKENS.check)] | None = None
    seed: Annotated[int, AfterValidator(_SEED.check)] | None = None
    repetition_penalty: Annotated[float, AfterValidator(_REPETITION.check)] | None = None
    presence_penalty: Annotated[float, AfterValidator(_PENALTY.check)] | None = None
    frequency_penalty: Annotated[float, AfterValidator(_PENALTY.check)] | None = None
    stop: Annotated[tuple[MendedText, ...], AfterValidator(_check_stops)] = ()

    def as_request(self) -> dict[str, Any]:
        """The fields that are set, for HeadClient.chat."""
        fields = self.model_dump(exclude_none=True, exclude={"stop"})
        return {**fields, "stop": list(self.stop)} if self.stop else fields


BEGINNING = Settings(temperature=0.6, top_p=0.95, min_p=0.05)
"""What a first conversation has: with the API's own defaults, which leave every token in, small models ramble."""


@dataclass(frozen=True, slots=True)
class NumberField:
    """A number among the settings, as people fill it in."""

    name: str
    label: str
    kind: type[int] | type[float]
    range: Range
    default: str
    """What holds while it is empty."""


NUMBERS = (
    NumberField("temperature", "Temperature", float, _TEMPERATURE, "1 (0: always the likeliest token)"),
    NumberField("top_p", "Top p", float, _TOP_P, "1 (all tokens)"),
    NumberField("top_k", "Top k", int, _TOP_K, "0 (all tokens)"),
    NumberField("min_p", "Min p", float, _MIN_P, "0 (all tokens)"),
    NumberField("max_tokens", "Most tokens", int, _MAX_TOKENS, "what the context has room for"),
    NumberField("seed", "Seed", int, _SEED, "another one each time"),
    NumberField("repetition_penalty", "Repetition penalty", float, _REPETITION, "1 (none)"),
    NumberField("presence_penalty", "Presence penalty", float, _PENALTY, "0 (none)"),
    NumberField("frequency_penalty", "Frequency penalty", float, _PENALTY, "0 (none)"),
)


def as_fields(settings: Settings) -> dict[str, str]:
    """The settings as people read and fill them in, by name; what is not set is empty."""
    fields = {}
    for number in NUMBERS:
        value = getattr(settings, number.name)
        fields[number.name] = "" if value is None else f"{value:g}" if _is_short(value) else str(value)
    return {**fields, "stop": "\n".join(_escaped(stop) for stop in settings.stop)}


def from_fields(fields: Mapping[str, str]) -> tuple[Settings, dict[str, str]]:
    """Settings from what people filled in, and what is wrong with it by the field's name: that is left out."""
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for number in NUMBERS:
        text = fields.get(number.name, "").strip()
        if not text:
            continue
        try:
            # in many countries a comma is the decimal point
            values[number.name] = int(text) if number.kind is int else float(text.replace(",", "."))
        except ValueError:
            wanted = "a whole number" if number.kind is int else "a number"
            errors[number.name] = f"must be {wanted}, {number.range}, not {text[:20]!r}"
    values["stop"] = tuple(_unescaped(line) for line in fields.get("stop", "").split("\n") if line)
    try:
        return Settings(**values), errors
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            name = str(fault["loc"][0])
            errors[name] = fault["msg"]
            values.pop(name, None)
    return Settings(**values), errors


def _is_short(value: float) -> bool:
    return isinstance(value, float) and float(f"{value:g}") == value


def _escaped(stop: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in stop)


def _unescaped(line: str) -> str:
    text, position = "", 0
    while position < len(line):
        pair = line[position : position + 2]
        text += _UNESCAPES.get(pair, line[position])
        position += 2 if pair in _UNESCAPES else 1
    return text


# a stop text takes one line when it is filled in
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_UNESCAPES = {escaped: character for character, escaped in _ESCAPES.items()}
