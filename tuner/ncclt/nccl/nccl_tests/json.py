"""The file that nccl-tests writes with `-J`, versions 1 to 3 and what later ones share with them.

Source: nccl-tests src/util.cu (2.17.3 = version 1, 2.19.2 = 2, 2.19.6 = 3). It is written by hand-made code: booleans
are words, `root` is padded text, nan is the text "nan", and an infinity is a bare `inf`, which is not JSON. The file
also holds the whole environment of the run, which may contain secrets: that field is never read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ncclt.errors import BenchmarkError
from ncclt.nccl.nccl_tests.result import NcclTest, NcclTestRow, NcclTestTiming, count_hosts, find_collective

NEWEST = 3
"""The newest version of the file that ncclt knows."""

_BARE_NUMBER = re.compile(r"(?<=[:,\[])(\s*)-?(?:inf|nan)(?=\s*[,}\]])")


def parse_json(text: str) -> NcclTest:
    """Read one result file.

    Raises:
        BenchmarkError: the file is cut off, of another kind, without rows, or of a newer, incompatible version.
    """
    document = _load(text)
    version = 0
    try:
        version = int(document["version"])
        test = _test(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if version > NEWEST:
            raise _newer(version, f"{type(error).__name__}: {error}"[:300]) from error
        raise BenchmarkError(
            f"this is not a result file of nccl-tests: {type(error).__name__}: {error}"[:300],
            hint="give the file written with -J",
        ) from error
    if not test.rows and version > NEWEST and "results" not in document:
        raise _newer(version, "it has no results")
    if not test.rows:
        errors = [str(e) for e in document.get("errors") or [] if e] if isinstance(document.get("errors"), list) else []
        raise BenchmarkError(
            f"nccl-tests measured nothing: {errors[0][:300] if errors else 'its result file has no rows'}",
            hint="look at what it printed",
        )
    return test


def _newer(version: int, why: str) -> BenchmarkError:
    return BenchmarkError(
        f"cannot read version {version} of the nccl-tests result file, which is newer than {NEWEST}: {why}",
        hint="update ncclt, or give the table that nccl-tests prints",
    )


def _load(text: str) -> Mapping[str, Any]:
    document = None
    try:
        document = _decode(text)
    except ValueError:
        try:
            document = _decode(_BARE_NUMBER.sub(r"\1NaN", text))
        except ValueError as error:
            # A whole file ends with its outermost brace; nccl-tests writes it last.
            if text.lstrip()[:1] in ("", "{") and not text.rstrip().endswith("}"):
                raise BenchmarkError(
                    f"the result file is cut off after {len(text)} characters",
                    hint="nccl-tests was ended before it was through; give it more time or see why it died",
                ) from error
            raise BenchmarkError(
                f"the result file is not JSON: {str(error)[:200]}", hint="give the file written with -J"
            ) from error
    if not isinstance(document, dict):
        raise BenchmarkError("the result file is not a JSON object", hint="give the file written with -J")
    return document


def _decode(text: str) -> Any:
    try:
        # strict=False: control characters inside strings are harmless here.
        return json.loads(text, strict=False)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _test(document: Mapping[str, Any]) -> NcclTest:
    config = document.get("config") or {}
    # The list of devices names only the first GPU of each process, with the group of the process.
    devices = config.get("devices") or []
    groups = [device.get("group") for device in devices]
    mine = [device for device in devices if device.get("group") == groups[0]]
    processes = groups.count(groups[0]) if groups else 0
    ranks = processes * int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
    arguments = document.get("args") or [""]
    program = str(arguments[0]).rpartition("/")[2]
    average = (document.get("average_bus_bandwidth") or {}).get("bandwidth")
    checks = document.get("out_of_bounds") or {}
    out_of_bounds = int(checks["count"]) if "count" in checks else None
    if out_of_bounds is not None and checks.get("okay") == "false":
        out_of_bounds = max(out_of_bounds, 1)
    named = program if "_perf" in program else None
    rows = tuple(_row(row) for row in document.get("results") or [])
    return NcclTest(
        program=named,
        version=None,
        file_version=int(document["version"]),
        ranks=ranks,
        rows=rows,
        collective=find_collective(named, rows, ranks),
        avg_busbw_gbps=None if average is None else float(average),
        out_of_bounds=out_of_bounds,
        hosts=count_hosts(
            [(str(one.get("hostname", "")), f"{one.get('device')} {one.get('device_hex')}") for one in mine]
        ),
        gpu=str(mine[0].get("device_info") or "") if mine else "",
        nccl=str(document.get("nccl_version") or ""),
    )


def _row(row: Mapping[str, Any]) -> NcclTestRow:
    size, count = int(row["size"]), int(row["count"])
    if size < 0 or count < 0:
        raise ValueError(f"a row with size {size} and count {count}")
    return NcclTestRow(
        size_bytes=size,
        count=count,
        dtype=str(row["type"]),
        redop=str(row["redop"]),
        root=int(row["root"]),
        out_of_place=_timing(row.get("out_of_place"), row.get("out_of_place_per_iter")),
        in_place=_timing(row.get("in_place"), row.get("in_place_per_iter")),
    )


def _timing(half: Mapping[str, Any] | None, calls: Mapping[str, Any] | None) -> NcclTestTiming | None:
    if half is None:
        return None
    wrong = half.get("nwrong")
    return NcclTestTiming(
        time_us=float(half["time"] if "time" in half else half["cpu_time"]),
        algbw_gbps=float(half["alg_bw"]),
        busbw_gbps=float(half["bus_bw"]),
        wrong=None if wrong is None else int(float(wrong)),
        calls_us=tuple(map(float, calls["times_us"]))[int(calls.get("skipped_iterations", 0)) :] if calls else (),
    )
