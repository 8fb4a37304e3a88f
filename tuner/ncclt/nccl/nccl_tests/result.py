"""What one run of nccl-tests reports, in either of its two formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ncclt.core.message import Collective


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTestTiming:
    """One half of a row: out-of-place or in-place.

    Attributes:
        time_us: per call, µs; nan where nccl-tests printed nan.
        algbw_gbps, busbw_gbps: as printed, 1e9 bytes/s.
        wrong: elements that came out wrong; None = not checked (`N/A`, or the `error` column of older releases,
            which is a difference, not a count).
        calls_us: time of each call, µs, of the slowest process; empty where it was not taken.
    """

    time_us: float
    algbw_gbps: float
    busbw_gbps: float
    wrong: int | None
    calls_us: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTestRow:
    """One measured size.

    Attributes:
        size_bytes: the `size` column; 0 where alignment left nothing to send.
        count: elements; per rank for all_gather, reduce_scatter and alltoall.
        dtype: in the spelling of nccl-tests, `float`.
        redop, root: None where the table has no such column; redop is empty where it is there and blank.
        out_of_place, in_place: None where that half is missing.
    """

    size_bytes: int
    count: int
    dtype: str
    redop: str | None
    root: int | None
    out_of_place: NcclTestTiming | None
    in_place: NcclTestTiming | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTest:
    """One run of one nccl-tests program.

    Attributes:
        program: `all_reduce_perf` where the output names it.
        command: the same, from the last command line before the output; None = there is none.
        version: of nccl-tests, where the output names it.
        file_version: of the file that `-J` writes; 0 = this is the printed table.
        ranks: of the group whose times are printed: the first one, where the job was split into groups. From the device
            lines, else from the form of the rows, else from the command line; 0 = not known.
        collective: by name or form; a word where ncclt has no message for it, None where several are possible.
        rows: in order; repeated where the sweep was.
        avg_busbw_gbps: as printed, 1e9 bytes/s; None where the run ended before that.
        out_of_bounds: number of failed checks; None where the run ended before that.
        hosts: that these ranks ran on; 0 = not known.
        gpu: of the first rank, as its driver names it; empty = not known.
        nccl: the NCCL version that it loaded, as it prints it: `2.28.9` or `22809`; empty = not known.
        variables: NCCL_* variables of the run, from its command line and from NCCL's lines on its environment; what is
            missing may have been set without a trace in the output.
        is_ambiguous: several command lines came before the run, and they set different variables.
        unreadable_lines: lines inside the table that are not rows, such as log lines and rows broken by them.
    """

    program: str | None
    version: str | None
    ranks: int
    rows: tuple[NcclTestRow, ...]
    avg_busbw_gbps: float | None
    out_of_bounds: int | None
    collective: Collective | str | None = None
    unreadable_lines: int = 0
    command: str | None = None
    hosts: int = 0
    gpu: str = ""
    nccl: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    is_ambiguous: bool = False
    file_version: int = 0


def count_hosts(places: Sequence[tuple[str, str]]) -> int:
    """Return how many machines ranks ran on; 0 = not known.

    Args:
        places: host of each, and its device by number and PCI bus; old versions print every bus as 0x00. Two ranks on
            one GPU are of machines or containers that share a name.
    """
    known = all(host for host, _ in places) and len(set(places)) == len(places)
    return len({host for host, _ in places}) if known else 0
