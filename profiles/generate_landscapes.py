"""Write profiles/landscapes/*.csv from public tables in our tidy format (docs/landscapes.md).

    python profiles/generate_landscapes.py FOLDER

FOLDER holds the tables that profiles/landscapes/README.md names. Figures and sources are carried unchanged; rows and
columns that say nothing here are left out.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

LANDSCAPES = Path(__file__).parent / "landscapes"
COLUMNS = (
    "system", "gpus", "nodes", "gpus_per_node", "interconnect", "nccl_version", "collective", "dtype", "size_bytes",
    "algo", "proto", "nchannels", "other_env", "time_us", "busbw_gbps", "in_place", "source", "licence",
)  # fmt: skip
"""What is written: no table here sets buffsize or nthreads, and algbw_gbps follows from the others."""

Row = dict[str, str]


def _is_measured(row: Row) -> bool:
    """Return whether the row measured what was asked for: the library may have run something else."""
    return not row["other_env"].startswith("SUBSTITUTED")


def _undisturbed(row: Row) -> bool:
    return not any(words in row["source"] for words in ("first of 3 repetitions", "first of 3 default runs"))


def _l40s(gpus: str) -> Callable[[Row], bool]:
    def wanted(row: Row) -> bool:
        plain = "contention" not in row["other_env"]
        return row["system"].startswith("L40S") and row["gpus"] == gpus and row["in_place"] == "0" and plain

    return wanted


def _h100(row: Row) -> bool:
    same = (row["gpus"], row["nccl_version"], row["collective"], row["in_place"]) == ("4", "2.18.3", "all_reduce", "0")
    return same and not row["other_env"]


MI355X = tuple(f"mi355x_rccl_2node_{name}_grid" for name in ("allreduce", "allgather", "reducescatter", "broadcast"))
TABLES: dict[str, tuple[tuple[str, ...], Callable[[Row], bool]]] = {
    "mi355x-2x8": (MI355X, lambda row: _is_measured(row) and _undisturbed(row)),
    "l40s-1x4": (("l40s_a100_cs244c",), _l40s("4")),
    "l40s-1x2": (("l40s_a100_cs244c",), _l40s("2")),
    "h100-1x4": (("h100_nvswitch_waynehacking8",), _h100),
    "rtx4090-1x4": (("rtx4090x4_shm_and_k500sm_channels",), lambda row: row["system"].startswith("4x RTX 4090")),
    "mi300x-cpx-1x64": (("mi300x_cpx_rccl_sixway",), lambda _row: True),
}
"""Recorded cluster -> its tables and which of their rows are carried."""


def _carried(row: Row) -> Iterator[Row]:
    """Yield the rows that a row becomes: the source of the MI300X table marks the library's own choice."""
    # A number of the list in which it was found says nothing to readers; the title does.
    title = re.sub(r" \(index id \d+\)$", "", row["source"]).replace("2nd-paper repo doc", "note")
    row = {**row, "source": title}
    if row["other_env"].startswith("mean of 20 iters"):
        own = row["other_env"].endswith("(RCCL default)")
        row = {**row, "other_env": "mean of 20 iters"}
        if own:
            chose = f"default chose {row['algo']}/{row['proto']}; mean of 20 iters"
            yield {**row, "algo": "", "proto": "", "other_env": chose}
    yield row


def main() -> None:
    """Write every table."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name, (tables, wanted) in TABLES.items():
        rows = []
        for table in tables:
            with (Path(sys.argv[1]) / f"{table}.csv").open(encoding="utf-8", newline="") as file:
                rows += [made for row in csv.DictReader(file) if wanted(row) for made in _carried(row)]
        path = LANDSCAPES / f"{name}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        print(f"{path.name}: {len(rows)} rows")


if __name__ == "__main__":
    main()
