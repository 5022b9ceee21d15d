"""One answer's tokens becoming the text its client sees: whole characters, and never a part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.detokenizer import StreamingDetokenizer
from shards.errors import RequestError


class TextStream:
    """Assembles one answer.

    Of several stop strings, the one that is complete first ends the answer (the longest of those that end together),
    however the text is cut into tokens.

    Args:
        detokenizer: Of this answer.
        stop: Texts that end the answer and are not part of it.

    Raises:
        RequestError: a stop string is empty.
    """

    def __init__(self, detokenizer: StreamingDetokenizer, stop: Sequence[str] = ()) -> None:
        if "" in stop:
            raise RequestError("a stop string is empty", where="stop", hint="Leave it out.")
        self._detokenizer = detokenizer
        self._stop = tuple(stop)
        self._held = ""
        """What may be the beginning of a stop string."""
        self.is_stopped = False
        """A stop string came: the answer has ended before it, and nothing comes any more."""

    def add(self, token: int) -> str:
        """Take the next token; answers the text that can be shown now."""
        return "" if self.is_stopped else self._advance(self._detokenizer.add(token))

    def finish(self) -> str:
        """The rest of the answer, when no more tokens come."""
        if self.is_stopped:
            return ""
        text = self._advance(self._detokenizer.finish())
        return text if self.is_stopped else text + self._held

    def _advance(self, new: str) -> str:
        text = self._held + new
        cut = self._first_stop(text)
        self.is_stopped = cut is not None
        if cut is None:
            cut = len(text) - self._beginning(text)
        self._held = text[cut:]
        return text[:cut]

    def _first_stop(self, text: str) -> int | None:
        """Where the stop string begins that is complete first."""
        found = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _beginning(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string begins."""
        longest = 0
        for stop in self._stop:
            lengths = range(min(len(stop) - 1, len(text)), longest, -1)
            longest = next((length for length in lengths if text.endswith(stop[:length])), longest)
        return longest
