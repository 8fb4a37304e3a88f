"""What NCCL says it chose: cuts its log into parts and reads each with ncclt's own readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ncclt.core.attestation import CallOutcome
from ncclt.core.message import Collective
from ncclt.deliver.log_evidence import observe

_CHOSEN = " Bytes -> "
"""Marks a TUNING line (nccl.md, 8.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How NCCL sent a message."""

    algorithm: str
    protocol: str
    channels: int

    @property
    def label(self) -> str:
        """Write it as `ring/simple/8`."""
        return f"{self.algorithm}/{self.protocol}/{self.channels}"


Choices = Mapping[tuple[Collective, int], Choice]
"""By collective and tuning size."""


class LogParts:
    """The log of rank 0, cut where the caller says.

    Every part holds the lines of its own time, and before them what NCCL said of its communicators: without those
    nobody could tell how many ranks a size stands for.
    """

    def __init__(self, log: Path, folder: Path) -> None:
        self._log = log
        self._folder = folder
        text = self._text()
        self._head = "".join(line for line in text.splitlines(keepends=True) if _CHOSEN not in line)
        self._seen = len(text)

    @property
    def head(self) -> str:
        """Return what the log held when the cutting began, without choices."""
        return self._head

    def cut(self, name: str) -> Choices:
        """Return what was chosen since the last cut, and keep the part as a file of this name.

        Raises:
            ValueError: one message was sent in two ways.
        """
        text = self._text()
        part, self._seen = text[self._seen :], len(text)
        path = self._folder / f"nccl.{name}.log"
        path.write_text(self._head + part)
        return read_choices(path)

    def _text(self) -> str:
        return self._log.read_text(errors="replace")


def read_choices(log: Path) -> Choices:
    """Return what NCCL says in a log that it chose.

    Raises:
        ValueError: one message was sent in two ways.
    """
    choices: dict[tuple[Collective, int], Choice] = {}
    for use in observe([log]).calls:
        if use.outcome is not CallOutcome.CHOSEN or use.group_size == 1:
            continue
        algorithm, protocol, channels = use.choice.split("/")
        choice = Choice(algorithm=algorithm, protocol=protocol, channels=int(channels))
        if choices.setdefault((use.collective, use.size_bytes), choice) != choice:
            raise ValueError(f"{log}: {use.collective} of {use.size_bytes} bytes was sent in two ways")
    return choices
