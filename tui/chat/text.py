"""Text that can be saved and sent."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator


def mend(text: str) -> str:
    """The text as UTF-8 can hold it.

    Terminals and files may give halves of surrogate pairs, which neither a file nor the head takes: those that belong
    together are joined, those alone become a replacement character.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _mend_texts(value: Any) -> Any:
    return mend(value) if isinstance(value, str) else value


MendedText = Annotated[str, BeforeValidator(_mend_texts)]
"""A field whose text is mended when it is assigned."""
