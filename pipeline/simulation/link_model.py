"""How long a frame is on its way from one PC to another."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

_BITS_PER_MS = 1000.0
"""Of one Mbit/s."""


class LinkModel(BaseModel):
    """A link, the same in both directions. Without any field it costs nothing: two stages on one PC."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    latency_ms: float = Field(0.0, ge=0, allow_inf_nan=False, description="one way; frames overlap in it")
    mbit: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="rate; frames take it one after another. None: no limit"
    )
    bytes_per_row: int = Field(0, ge=0, description="of a row's hidden state")
    bytes_per_token: int = Field(4, ge=0, description="of a token id on its way to the first stage")
    bytes_per_answer: int = Field(4, ge=0, description="of what the tail tells of a sampled row: an id, or all logits")
    frame_bytes: int = Field(0, ge=0, description="of a frame, whatever is in it")

    def occupied_ms(self, payload: int) -> float:
        """How long a frame with so many bytes keeps the link from the next one."""
        return 0.0 if self.mbit is None else 8 * (self.frame_bytes + payload) / (self.mbit * _BITS_PER_MS)


class Wire:
    """One direction of a link at work."""

    def __init__(self, model: LinkModel) -> None:
        self._model = model
        self._free_at = 0.0

    def carry(self, now: float, payload: int) -> float:
        """Send a frame; when it arrives. Frames are sent in order of time."""
        self._free_at = max(now, self._free_at) + self._model.occupied_ms(payload)
        return self._free_at + self._model.latency_ms
