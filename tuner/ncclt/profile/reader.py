"""The port behind which every source of workloads stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ncclt.core.workload import Workload


class Reader(Protocol):
    """Turns the files of one kind of source into a workload.

    A module can be a reader: it then has these members at its top level, as `ncclt.profile.readers.kineto.reader` does.

    Contract: `recognises` judges by content and never by a file's name, reads no more than the beginning, and never
    raises. `read` is given the files of one recorded job, in any order; the result does not depend on that order.
    It counts every call once, however many event families or ranks show it, gives `size_bytes` in the convention of
    `ncclt.core.message.Message`, and says in the notes of the provenance what the source lacks and what was assumed.
    It raises `TraceError` with a hint, and returns nothing, for files that are damaged, hold no collective, belong to
    different jobs, or show the same rank twice. It writes nothing and needs no network.
    """

    @property
    def name(self) -> str:
        """Return the word used with `--source` and in `Provenance.source`."""
        ...

    def recognises(self, path: Path) -> bool:
        """Return whether the content of a file is of this kind."""
        ...

    def read(self, paths: Sequence[Path], *, name: str) -> Workload:
        """Read the files of one job into a workload called `name`.

        Raises:
            TraceError: see the contract.
        """
        ...
