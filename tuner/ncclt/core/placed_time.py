"""Times that know where they were seen: a share of one in another of a different place is refused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTime:
    """Time per step and the place where it was seen.

    Attributes:
        us: µs per step, above 0 where it is the whole of a share.
        place: recording or study, in words.
    """

    us: float
    place: str

    def share_of(self, whole: PlacedTime) -> float:
        """Return the ratio to another time, at most 1.

        Raises:
            ValueError: the two were seen at different places, so their quotient means nothing.
        """
        if self.place != whole.place:
            raise ValueError(f"a time of {self.place} is no share of a time of {whole.place}")
        return min(1.0, self.us / whole.us)
