"""What is wrong with a scenario, in words."""

from __future__ import annotations

from pydantic import ValidationError

from shards.errors import ConfigurationError, EdgeAgentError


def located(error: ValidationError | EdgeAgentError, place: str = "", where: str = "") -> ConfigurationError:
    """The first thing that is wrong, as one error that names the field.

    Args:
        error: What was found.
        place: The field that all of it is in.
        where: The file, if it is known.
    """
    if isinstance(error, EdgeAgentError):
        what, field, hint = error.what, error.where or "", error.hint
    else:
        first = error.errors(include_url=False)[0]
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        what, field, hint = first["msg"].removeprefix("Value error, "), "".join(parts).removeprefix("."), None
    field = ".".join(part for part in (place, field) if part)
    return ConfigurationError(what, where=": ".join(part for part in (where, field) if part) or None, hint=hint)
