"""How fast and in how much memory a large Kineto trace is read, beside the JSON parsers that others read it with.

    python bench/profile_reading.py [--size-mb 1000] [--json] [--trace FILE]

Every reader runs in a process of its own, one after the other, on the same file, which `kineto_generator` writes first
(or on `--trace`, a file of yours). Seconds are those of the reading alone, without imports; peak memory is that of
the whole process. ncclt goes all the way to the messages, which are compared with those that were written; the parsers
only parse. `orjson` is given the bytes, as it wants them. HolisticTraceAnalysis takes part where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kineto_generator import expected_calls_per_step, write_trace

TARGET_PEAK_MB = 400


def with_ncclt(path: Path) -> Callable[[], object]:
    from ncclt.profile import get_reader, read_workload

    get_reader("kineto")
    return lambda: {m.message.size_bytes: m.calls_per_step for m in read_workload([path], name="bench").messages}


def with_orjson(path: Path) -> Callable[[], object]:
    import orjson

    return lambda: len(orjson.loads(path.read_bytes())["traceEvents"])


def with_json(path: Path) -> Callable[[], object]:
    def read() -> int:
        with path.open(encoding="utf-8") as file:
            return len(json.load(file)["traceEvents"])

    return read


def with_hta(path: Path) -> Callable[[], object]:
    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.parser_config import ParserConfig

    return lambda: len(parse_trace_dataframe(str(path), ParserConfig.get_default_cfg())[1])


READERS: dict[str, tuple[str, Callable[[Path], Callable[[], object]]]] = {
    "ncclt": ("ncclt", with_ncclt),
    "orjson.loads": ("orjson", with_orjson),
    "json.load": ("json", with_json),
    "HolisticTraceAnalysis": ("hta", with_hta),
}
"""Name in the table -> the module that it needs, and what prepares the reading."""


def measure(reader: str, path: Path) -> dict[str, Any]:
    """Read the file in this process."""
    read = READERS[reader][1](path)
    started = time.perf_counter()
    found = read()
    seconds = time.perf_counter() - started
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux
    return {
        "reader": reader,
        "seconds": round(seconds, 2),
        "peak_mb": round(peak_kib * 1024 / 1e6, 1),
        "mb_per_s": round(path.stat().st_size / 1e6 / seconds, 1),
        "found": found,
    }


def measure_apart(reader: str, path: Path) -> dict[str, Any]:
    """Read the file in a new process: the peak of a process never falls again."""
    command = [sys.executable, __file__, "--only", reader, "--trace", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{reader} failed on {path}:\n{done.stderr}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def compare(path: Path, *, synthetic: bool) -> list[dict[str, Any]]:
    rows = [
        measure_apart(name, path)
        for name, (module, _) in READERS.items()
        if importlib.util.find_spec(module) is not None
    ]
    for row in rows:
        found = row.pop("found")
        if (
            synthetic
            and row["reader"] == "ncclt"
            and found != {str(k): v for k, v in expected_calls_per_step().items()}
        ):
            sys.exit(f"ncclt read other messages than were written: {found}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mb", type=int, default=1000, help="million bytes of the synthetic trace")
    parser.add_argument("--trace", type=Path, help="read this uncompressed trace instead")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=sorted(READERS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.size_mb < 1:
        parser.error("--size-mb must be at least 1")
    if arguments.trace is not None and not arguments.trace.is_file():
        parser.error(f"there is no file {arguments.trace}")
    if arguments.only:
        print(json.dumps(measure(arguments.only, arguments.trace)))
        return
    if arguments.trace:
        rows = compare(arguments.trace, synthetic=False)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            write_trace(path, size_mb=arguments.size_mb)
            rows = compare(path, synthetic=True)
    if arguments.json:
        print(json.dumps({"rows": rows}))
        return
    for row in rows:
        print(f"{row['reader']:22} {row['seconds']:8.2f} s {row['peak_mb']:9.1f} MB {row['mb_per_s']:8.1f} MB/s")
    print(f"target: ncclt no slower than orjson.loads, and in at most {TARGET_PEAK_MB} MB")


if __name__ == "__main__":
    main()
