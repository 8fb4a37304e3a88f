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
        errors = [str(e) for e in document["errors"] if e] if isinstance(document.get("errors"), list) else []
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
    for json_text in (text, _BARE_NUMBER.sub(r"\1NaN", text)):
        try:
            # strict=False: control characters inside strings are harmless here.
            document = json.loads(json_text, strict=False)
            break
        except RecursionError:
            failure = ValueError("it is nested too deeply")
        except ValueError as error:
            failure = error
    else:
        # A whole file ends with its outermost brace; nccl-tests writes it last.
        if text.lstrip()[:1] in ("", "{") and not text.rstrip().endswith("}"):
            raise BenchmarkError(
                f"the result file is cut off after {len(text)} characters",
                hint="nccl-tests was ended before it was through; give it more time or see why it died",
            ) from failure
        raise BenchmarkError(
            f"the result file is not JSON: {str(failure)[:200]}", hint="give the file written with -J"
        ) from failure
    if not isinstance(document, dict):
        raise BenchmarkError("the result file is not a JSON object", hint="give the file written with -J")
    return document


def _test(document: Mapping[str, Any]) -> NcclTest:
    config = document.get("config") or {}
    # The list of devices names only the first GPU of each process, with the group of the process.
    devices = config.get("devices") or []
    first_group = [device for device in devices if device.get("group") == devices[0].get("group")]
    ranks = len(first_group) * int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
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
            [(str(d.get("hostname", "")), f"{d.get('device')} {d.get('device_hex')}") for d in first_group]
        ),
        gpu=str(first_group[0].get("device_info") or "") if first_group else "",
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
