"""How long a stage takes for a step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf, isfinite

from pydantic import BaseModel, ConfigDict, Field, field_validator

from shards.runtime import SequenceRows


class StageModel(BaseModel):
    """A stage by its step times."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = ""
    step_ms: tuple[tuple[float, float], ...] = Field(
        min_length=1,
        description="(rows, ms); linear in between, as the first below it, by the last slope beyond. Averages of "
        "published runs may have broken numbers of rows",
    )
    buckets: tuple[int, ...] = Field((), description="rows are padded up to the next; beyond, to multiples of the last")
    call_ms: float = Field(0.0, ge=0, allow_inf_nan=False, description="of every step besides: a head matrix, a send")
    ms_per_1k_context: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="of every row, for each thousand tokens cached before it"
    )
    jitter: float = Field(0.0, ge=0, le=1, description="deviation of a step's time, as a part of it")

    @field_validator("step_ms")
    @classmethod
    def _check_times(cls, points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        rows = [count for count, _ in points]
        if not all(isfinite(count) for count in rows) or any(a >= b for a, b in pairwise((0, *rows))):
            raise ValueError(f"numbers of rows must grow from above 0, these are {rows}")
        if wrong := [ms for _, ms in points if not 0 < ms < inf]:
            raise ValueError(f"every time must be above 0, and one is {wrong[0]}")
        return points

    @field_validator("buckets")
    @classmethod
    def _check_buckets(cls, buckets: tuple[int, ...]) -> tuple[int, ...]:
        if any(a >= b for a, b in pairwise((0, *buckets))):
            raise ValueError(f"they must grow from 1 or more, these are {list(buckets)}")
        return buckets

    def table_ms(self, rows: float) -> float:
        """Milliseconds of so many rows without context, padding done."""
        rows = self._padded(rows)
        points = self.step_ms
        if rows <= points[0][0] or len(points) == 1:
            return points[0][1] + self.call_ms
        above = next((i for i, (count, _) in enumerate(points) if count >= rows), len(points) - 1)
        (r0, t0), (r1, t1) = points[above - 1], points[above]
        return max(0.0, t0 + (t1 - t0) * (rows - r0) / (r1 - r0)) + self.call_ms

    def time_ms(self, rows: Sequence[SequenceRows]) -> float:
        """Milliseconds of a step; one that carries operations alone takes none."""
        count = sum(part.count for part in rows)
        if not count:
            return 0.0
        time = self.table_ms(count)
        if self.ms_per_1k_context:
            attended = sum(part.count * part.past + part.count * (part.count - 1) // 2 for part in rows)
            time += self.ms_per_1k_context * attended / 1000
        return time

    def _padded(self, rows: float) -> float:
        if not self.buckets:
            return rows
        last = self.buckets[-1]
        return next((float(bucket) for bucket in self.buckets if bucket >= rows), float(-(-rows // last) * last))
