"""Write profiles/landscapes/*.csv from public tables in our tidy format (docs/landscapes.md), or check them.

    python profiles/generate_landscapes.py [FOLDER]             write them
    python profiles/generate_landscapes.py [FOLDER] --check     exit 1 and name every file that differs

FOLDER holds the tables that profiles/landscapes/README.md names; by default `shared/data/measurements` beside the
repository. They are not shipped: without them, --check says that it was skipped and exits 0. Figures and sources are
carried unchanged; rows and columns that say nothing here are left out.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

LANDSCAPES = Path(__file__).parent / "landscapes"
MEASUREMENTS = Path(__file__).resolve().parents[2] / "shared" / "data" / "measurements"
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


def build_table(name: str, folder: Path) -> str:
    """Return the text of a recorded cluster's table.

    Raises:
        OSError: a table is not in the folder.
    """
    tables, wanted = TABLES[name]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for table in tables:
        with (folder / f"{table}.csv").open(encoding="utf-8", newline="") as file:
            for row in filter(wanted, csv.DictReader(file)):
                writer.writerows(_carried(row))
    return text.getvalue()


def main() -> int:
    """Write or check the tables; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=MEASUREMENTS, help="folder of the original tables")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 where a file differs")
    options = parser.parse_args()
    if options.check and options.folder == MEASUREMENTS and not MEASUREMENTS.is_dir():
        print(f"{Path(__file__).name}: skipped: the original tables are not in {MEASUREMENTS}", file=sys.stderr)
        return 0
    try:
        built = {LANDSCAPES / f"{name}.csv": build_table(name, options.folder) for name in TABLES}
    except OSError as error:
        print(f"{error.filename} cannot be read: {error.strerror}", file=sys.stderr)
        return 1
    if options.check:
        shipped = set(LANDSCAPES.glob("*.csv"))
        differing = [path for path in sorted(shipped | set(built)) if not _is_current(path, built.get(path))]
        for path in differing:
            print(f"{path.name} differs: run python profiles/generate_landscapes.py", file=sys.stderr)
        return 1 if differing else 0
    # Every table is built before the first is written.
    for path, text in built.items():
        path.write_text(text, encoding="utf-8", newline="")
    return 0


def _is_current(path: Path, text: str | None) -> bool:
    return text is not None and path.is_file() and path.read_bytes() == text.encode()


if __name__ == "__main__":
    sys.exit(main())
