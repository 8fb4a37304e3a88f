"""NCCL's version number."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from ncclt.errors import UsageError


class NcclVersion(NamedTuple):
    """An NCCL version; compares as a tuple does.

    >>> NcclVersion.parse("2.28.9") > NcclVersion(2, 24, 0)
    True
    """

    major: int
    minor: int
    patch: int = 0

    @classmethod
    @lru_cache(maxsize=64)  # a study asks for that of its cluster ten thousand times
    def parse(cls, text: str) -> NcclVersion:
        """Read `2.28.9`, `2.28`, `v2.28.9-1` or NCCL's own number `22809`.

        Raises:
            UsageError: the text is not an NCCL version.
        """
        number = re.fullmatch(r"\s*(\d{4,6})\s*", text)
        if number:
            value = int(number[1])
            # NCCL_VERSION_CODE: up to 2.8 X*1000+Y*100+Z, from 2.9 X*10000+Y*100+Z (nccl.h).
            if value < 10000:
                return cls(value // 1000, value % 1000 // 100, value % 100)
            return cls(value // 10000, value % 10000 // 100, value % 100)
        match = re.fullmatch(r"\s*v?(\d+)\.(\d+)(?:\.(\d+))?(?:[-+].*)?\s*", text)
        if not match:
            raise UsageError(f"{text!r} is not an NCCL version", hint="write it as 2.28.9")
        return cls(int(match[1]), int(match[2]), int(match[3] or 0))

    def __str__(self) -> str:
        """Write it as NCCL does: `2.28.9`."""
        return f"{self.major}.{self.minor}.{self.patch}"
