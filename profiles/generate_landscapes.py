"""Write profiles/landscapes/*.csv from public tables (docs/cluster-admin/landscapes.md), or check them.

    python profiles/generate_landscapes.py [FOLDER]             write them
    python profiles/generate_landscapes.py [FOLDER] --check     exit 1 and name every file that differs

FOLDER holds the tables that profiles/landscapes/README.md names; by default `shared/data/measurements` beside the
repository. They are not shipped: without them, --check says that it was skipped and exits 0. Figures and sources are
carried unchanged; rows and columns that say nothing here are left out.

The public tables say in prose (`other_env`) what was forced, what NCCL chose, and under which condition. All reading
of that prose is here; ncclt itself reads only the strict form.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.cluster_file import parse_cluster_toml
from ncclt.core.message import Collective, bus_factor
from ncclt.core.setting import MAX_CHANNELS, Setting
from ncclt.errors import InputError, reason
from ncclt.measure.replay.landscape_rows import LandscapeRow, write_rows
from ncclt.nccl.parameters import CATALOGUE

LANDSCAPES = Path(__file__).parent / "landscapes"
MEASUREMENTS = Path(__file__).resolve().parents[2] / "shared" / "data" / "measurements"

FALLBACK_VERSION = "2.21.5"
"""Where a table names no NCCL version: old enough to rely on nothing newer."""

REQUIRED = ("system", "gpus", "nodes", "collective", "size_bytes", "algo", "proto", "nchannels", "time_us")
OPTIONAL = (
    "gpus_per_node",
    "interconnect",
    "nccl_version",
    "dtype",
    "buffsize",
    "nthreads",
    "other_env",
    "algbw_gbps",
    "busbw_gbps",
    "in_place",
    "source",
    "licence",
)
"""Columns of the public tables; others are ignored."""

_ANNOTATIONS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"spread\s+[\d.]+\s*%?|(?:std|stdev|sd|cv|iqr|n|iters|warmups?)\s*[=:]?\s*[\d.]+\s*(?:%|us|µs|ms)?",
        r"(?:repeat|run|rep|trial|iteration)?[\s_]*(?:iteration|run|rep|trial|repeat)[_\s#-]*\d+",
        r"r\d+\s+(?:avg|mean|median|min|max)",
        r"(?:avg|average|mean|median|p\d\d|min)(?:\s+(?:of|over)\s+[\w/]+(?:\s+(?:runs?|iters?|iterations?|busbw|samples?))?)?",
        r"p\d\d\s+median\s+multi-run\b.*",
        r"defaults?(?:\s+chose\b.*|\s+unforced|\s*\(.*\)(?:\s*:.*)?)?",
        r"unforced|[nr]ccl\s+ran\b.*",
        r"automatic(?:\s+choice)?|default\s+choice|nccl(?:'s)?\s+(?:own\s+)?choice|rccl\s+default|forced",
        r"gpu\s+compute\s+contention(?:\s+none)?",
    )
)
"""Remarks on how a figure was taken or what the library chose. Any other remark is a condition, which is safe: it
splits a table and never mixes two landscapes."""

_DEFAULT_REMARK = re.compile(
    r"(?:defaults?|automatic)(?:\s+choice)?(?:\s+unforced|\s*\(.*\)(?:\s*:.*)?)?|unforced|defaults?\s+chose\b.*",
    re.IGNORECASE,
)
_DEFAULT = re.compile(r"(?:default|unforced|auto(?:matic)?|none)\b.*", re.IGNORECASE)
_WRONG = re.compile(r"\bWRONG\s*=\s*(\d+)", re.IGNORECASE)
_SPREAD = re.compile(r"\bspread\s+([\d.]+)\s*%", re.IGNORECASE)
_RAN = re.compile(r"\b[NR]CCL\s+ran\s+(\w+)/(\w+)", re.IGNORECASE)
_PARAMETER = re.compile(r"NCCL_([A-Z0-9_]+)=(\d+)")
_SEARCHED = frozenset(parameter.name for parameter in CATALOGUE if parameter.ladder)

_FORCED_COLUMNS = ("algo", "proto", "nchannels")
_PARAMETER_COLUMNS = {"buffsize": "BUFFSIZE", "nthreads": "NTHREADS"}
_COLLECTIVES = {c.value.replace("_", ""): c for c in Collective}
_ALGORITHMS = {a.value.replace("_", ""): a for a in Algorithm}
_PROTOCOLS = {p.value: p for p in Protocol}
_Name = TypeVar("_Name")

_PCIE_GBPS = {"5": 64.0, "4": 32.0, "3": 16.0}
_FABRICS = (
    ("slingshot", "slingshot"),
    ("efa", "efa"),
    ("roce", "roce"),
    ("infiniband", "infiniband"),
    ("hdr", "infiniband"),
    ("ndr", "infiniband"),
    ("edr", "infiniband"),
    ("ib", "infiniband"),
    ("cx7", "roce"),
    ("connectx", "roce"),
    ("rdma", "roce"),
    ("tcp", "ethernet"),
    ("network", "ethernet"),
    ("ethernet", "ethernet"),
)

Row = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """One landscape of a public table: one system, shape, version, buffer placement and condition.

    Attributes:
        table: file name without ending.
        condition: remark that holds for all rows; empty = none.
        cluster: guessed from the names of system and interconnect.
        rows: as the strict form has them.
    """

    table: str
    condition: str
    cluster: Cluster
    rows: tuple[LandscapeRow, ...]

    @property
    def name(self) -> str:
        """Return table, shape and condition in one line."""
        first, condition = self.rows[0], self.condition.split(";")[0]
        return f"{self.table} {first.nodes}x{first.gpus_per_node} {condition}".rstrip()


def read_originals(
    path: Path, wanted: Callable[[Row], bool] = lambda _row: True
) -> tuple[list[Original], tuple[str, ...]]:
    """Convert a public table.

    Args:
        path: the table.
        wanted: rows to convert.

    Returns:
        Its landscapes, those without a default too, and notes on rows that were left out.

    Raises:
        InputError: the table cannot be read, has an invalid row, or none that can be used.
    """
    groups: dict[tuple[str, ...], list[tuple[LandscapeRow, Row]]] = {}
    dropped: Counter[str] = Counter()
    count = 0
    for number, original in _lines(path):
        for line in _carried(original) if wanted(original) else ():
            count += 1
            gap = _gap(line)
            if gap:
                dropped[gap] += 1
                continue
            key = (*(line[column] for column in _SAME), _condition(line["other_env"]))
            groups.setdefault(key, []).append((_row(number, line, path), line))
    notes = [f"{path.name}: {rows} rows with {why} are left out" for why, rows in dropped.items()]
    if not count:
        raise InputError(f"{path.name} has no rows", hint="the first line names the columns, then one row each")
    if not groups:
        raise InputError(f"no row of {path.name} can be used: {'; '.join(notes)}", hint="see the README beside it")
    found = []
    for (*_, condition), pairs in groups.items():
        kept, note = _without_lists(_one_placement(pairs))
        notes += [f"{path.name}: {note}"] if note else []
        rows = _numbered(row for row, _ in kept)
        cluster = guess_cluster(rows[0], interconnect=pairs[0][1]["interconnect"], version=pairs[0][1]["nccl_version"])
        found.append(Original(table=path.stem, condition=condition, cluster=cluster, rows=rows))
    return found, tuple(notes)


_SAME = ("system", "gpus", "nodes", "gpus_per_node", "interconnect", "nccl_version")


def _numbered(rows: Iterable[LandscapeRow]) -> tuple[LandscapeRow, ...]:
    """Number the repetitions of every point."""
    points: Counter[tuple[object, ...]] = Counter()
    found = []
    for row in rows:
        point = (row.collective, row.dtype, row.size_bytes, row.setting)
        points[point] += 1
        found.append(replace(row, repetition=points[point]))
    return tuple(found)


def _one_placement(pairs: list[tuple[LandscapeRow, Row]]) -> list[tuple[LandscapeRow, Row]]:
    """Return the out-of-place rows if they hold default and forced settings, else the in-place, else the unmarked."""
    groups: dict[str, list[tuple[LandscapeRow, Row]]] = {}
    for pair in pairs:
        groups.setdefault(pair[1]["in_place"], []).append(pair)
    order = ["0", "1", ""]

    def rank(key: str) -> tuple[bool, int]:
        kinds = {row.setting.is_default for row, _ in groups[key]}
        return len(kinds) < 2, order.index(key) if key in order else len(order)

    return groups[min(groups, key=rank)]


def _without_lists(pairs: list[tuple[LandscapeRow, Row]]) -> tuple[list[tuple[LandscapeRow, Row]], str]:
    """Leave out rows with a list of algorithms, unless they are the only default, and return a note on them.

    No setting forces a list. Where it names all that the machine has, as `Ring,Tree` without NVLS, it is the default.
    """
    listed = [pair for pair in pairs if "," in pair[1]["algo"]]
    if not listed:
        return pairs, ""
    names = " and ".join(sorted({line["algo"] for _, line in listed}))
    if any(row.setting.is_default and "," not in line["algo"] for row, line in pairs):
        kept = [pair for pair in pairs if "," not in pair[1]["algo"]]
        return kept, f"{len(listed)} rows with several algorithms ({names}) are left out: no setting forces a list"
    return pairs, f"no row is without {names}: taken as the default"


def _lines(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield (line number, column -> stripped text)."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            if not reader.fieldnames:
                raise InputError(f"{path.name} is empty", hint=f"its first line names {', '.join(REQUIRED)}")
            twice = [column for column, count in Counter(reader.fieldnames).items() if count > 1]
            if twice:
                raise InputError(f"{path.name}, line 1: duplicate column {twice[0]!r}", hint="keep one of them")
            missing = [column for column in REQUIRED if column not in reader.fieldnames]
            if missing:
                raise InputError(
                    f"{path.name} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}",
                    hint=f"needed are {', '.join(REQUIRED)}",
                )
            for raw in reader:
                if None in raw:
                    raise InputError(
                        f"{path.name}, line {reader.line_num}: more fields than columns",
                        hint="quote fields that contain a comma",
                    )
                line = {column: (raw.get(column) or "").strip() for column in REQUIRED + OPTIONAL}
                if any(line.values()):
                    yield reader.line_num, line
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV: {reason(error)}", hint="give a table in UTF-8") from error


def _carried(line: Row) -> Iterator[Row]:
    """Yield the rows that a row becomes, with blank columns where they name what the library chose."""
    remark = line["other_env"]
    # A number of the list in which it was found says nothing to readers; the title does.
    title = re.sub(r" \(index id \d+\)$", "", line["source"]).replace("2nd-paper repo doc", "note")
    line = {**line, "source": title}
    if remark.startswith("mean of 20 iters"):
        # The MI300X table has no rows of the default: it marks the forced setting that is RCCL's choice.
        line["other_env"] = "mean of 20 iters"
        if remark.endswith("(RCCL default)"):
            yield {**line, **dict.fromkeys(_FORCED_COLUMNS, "")}
        yield line
        return
    is_default = any(_DEFAULT_REMARK.fullmatch(piece) for piece in re.split(r"\s*[;|,]\s*", remark))
    yield line | {c: "" for c in _FORCED_COLUMNS if is_default or _DEFAULT.fullmatch(line[c])}


def _gap(line: Row) -> str:
    """Return why a row cannot be used, empty where it can: blanks are what the source does not give."""
    wrong = _WRONG.search(line["other_env"])
    if wrong is not None and int(wrong[1]) > 0:
        return "failed validation"
    if _is_substituted(line):
        return "another choice of the library than the one asked for"
    for column, words in (("size_bytes", "no size"), ("gpus", "no number of GPUs"), ("nodes", "no number of nodes")):
        if not line[column]:
            return words
    # A bandwidth of 0.00 was rounded down to nothing.
    bandwidths = [text for text in (line["algbw_gbps"], line["busbw_gbps"]) if text and text.strip("0.")]
    return "" if line["time_us"] or bandwidths else "neither a time nor a bandwidth"


def _is_substituted(line: Row) -> bool:
    """Return whether the library ran something else than was forced, as a remark says."""
    ran = _RAN.search(line["other_env"])
    forced = [(line["algo"], ran[1]), (line["proto"], ran[2])] if ran else []
    asked = line["algo"] or line["proto"] or line["nchannels"]
    differs = any(wanted and wanted.lower() not in ("", used.lower()) for wanted, used in forced)
    return bool(asked) and ("SUBSTITUTED" in line["other_env"].upper() or differs)


def _row(number: int, line: Row, path: Path) -> LandscapeRow:
    where = f"{path.name}, line {number}"
    gpus = _whole(line, "gpus", where)
    nodes = _whole(line, "nodes", where)
    collective = _known(line, "collective", _COLLECTIVES, where)
    size_bytes = _whole(line, "size_bytes", where)
    spread = _SPREAD.search(line["other_env"])
    return LandscapeRow(
        number=number,
        system=line["system"],
        gpus=gpus,
        nodes=nodes,
        gpus_per_node=_whole(line, "gpus_per_node", where) if line["gpus_per_node"] else max(1, gpus // nodes),
        nccl_version=_version(line["nccl_version"]),
        collective=collective,
        dtype=line["dtype"],
        size_bytes=size_bytes,
        setting=_setting(line, where),
        time_us=_time_us(line, collective, size_bytes, gpus, where),
        spread=float(spread[1]) / 100 if spread else 0.0,
        in_place={"0": False, "1": True}.get(line["in_place"]),
        source=line["source"],
    )


def _setting(line: Row, where: str) -> Setting:
    channels = _whole(line, "nchannels", where) if line["nchannels"] else None
    if channels is not None and channels > MAX_CHANNELS:
        raise InputError(f"{where}: nchannels is {channels}", hint=f"NCCL has at most {MAX_CHANNELS}")
    parameters = {
        found[1]: int(found[2])
        for piece in re.split(r"[;|,]\s*", line["other_env"])
        if (found := _PARAMETER.fullmatch(piece.strip())) and found[1] in _SEARCHED
    }
    for column, name in _PARAMETER_COLUMNS.items():
        if line[column]:
            parameters[name] = _whole(line, column, where)
    is_forced = line["algo"] and "," not in line["algo"]
    return Setting(
        algorithm=_known(line, "algo", _ALGORITHMS, where) if is_forced else None,
        protocol=_known(line, "proto", _PROTOCOLS, where) if line["proto"] else None,
        channels=channels,
        parameters=tuple(parameters.items()),
    )


def _known(line: Row, column: str, names: Mapping[str, _Name], where: str) -> _Name:
    name = re.sub(r"[_\-\s]", "", line[column].lower())
    if name not in names:
        raise InputError(f"{where}: unknown {column} {line[column]!r}", hint=f"one of {', '.join(names)}")
    return names[name]


def _number(line: Row, column: str, where: str) -> float:
    try:
        value = float(line[column])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(
            f"{where}: {column} is {line[column]!r}, which is not a number above 0", hint="correct or remove the row"
        )
    return value


def _whole(line: Row, column: str, where: str) -> int:
    value = _number(line, column, where)
    if value != int(value):
        raise InputError(f"{where}: {column} is {line[column]!r}, which is not a whole number", hint="correct the row")
    return int(value)


def _time_us(line: Row, collective: Collective, size_bytes: int, gpus: int, where: str) -> float:
    """Return the time, or if it is blank that of the bandwidth: bytes / algbw, busbw = algbw x factor."""
    if line["time_us"]:
        return _number(line, "time_us", where)
    if line["busbw_gbps"].strip("0."):
        # A bandwidth column with few digits is coarse; busbw has more of them than algbw.
        algbw = _number(line, "busbw_gbps", where) / bus_factor(collective, gpus)
    else:
        algbw = _number(line, "algbw_gbps", where)
    return size_bytes / algbw / 1e3


def _condition(other_env: str) -> str:
    """Return the part of the remarks that is a condition; empty where all of them describe the figure.

    >>> _condition("default chose TREE/LL; spread 0.4%"), _condition("GPU compute contention low")
    ('', 'GPU compute contention low')
    """
    kept = []
    for part in re.split(r"\s*[;|]\s*", other_env.strip()):
        pieces = [piece for piece in re.split(r"\s*,\s+", part) if not _is_annotation(piece)]
        if pieces:
            kept.append(", ".join(pieces))
    return "; ".join(kept)


def _is_annotation(piece: str) -> bool:
    text = piece.strip()
    parameter = _PARAMETER.fullmatch(text)
    return (
        not text
        or any(pattern.fullmatch(text) for pattern in _ANNOTATIONS)
        or bool(_WRONG.fullmatch(text))
        or (parameter is not None and parameter[1] in _SEARCHED)
    )


def _version(text: str) -> str:
    found = re.search(r"(?<![\d.])(2\.\d+(?:\.\d+)?)", text)
    return found[1] if found else FALLBACK_VERSION


_GPUS: tuple[tuple[str, int], ...] = (
    ("GB200", 100),
    ("GB10", 121),
    ("B200", 100),
    ("B300", 103),
    ("GH200", 90),
    ("H200", 90),
    ("H100", 90),
    ("H800", 90),
    ("H20", 90),
    ("RTX PRO 6000", 120),
    ("RTX 5090", 120),
    ("RTX 4090", 89),
    ("L40S", 89),
    ("L40", 89),
    ("L4", 89),
    ("A100", 80),
    ("A800", 80),
    ("A30", 80),
    ("A10G", 86),
    ("A10", 86),
    ("RTX 3090", 86),
    ("A40", 86),
    ("T4", 75),
    ("V100", 70),
    ("P100", 60),
    ("MI355X", 95),
    ("MI350X", 95),
    ("MI325X", 94),
    ("MI300X", 94),
    ("MI250X", 90),
    ("MI250", 90),
)
"""Names to look for and their compute capability; for AMD gfx950 -> 95, gfx942 -> 94, gfx90a -> 90."""

_NVLINK_GBPS = {70: 150.0, 80: 300.0, 90: 450.0, 100: 900.0, 94: 448.0, 95: 538.0}
"""Nominal bandwidth out of one GPU over NVLink or xGMI, by compute capability (vendors' data sheets)."""


def find_gpu(name: str) -> tuple[str, int, float] | None:
    """Return (name, compute capability, 1e9 bytes/s over NVLink or xGMI, 0 = none) of a GPU; None = not known."""
    folded = re.sub(r"[\s_-]+", " ", name.upper())
    for model, capability in _GPUS:
        if re.search(rf"(?<![A-Z0-9])(?:\d+X)?{model}(?![A-Z0-9])", folded):
            suffix = re.search(rf"{model} (SXM\d?|PCIE)(?: (\d+GB))?", folded)
            parts = [model.replace(" ", "-"), *(part for part in (suffix.groups() if suffix else ()) if part)]
            return "-".join(parts), capability, _NVLINK_GBPS.get(capability, 0.0)
    return None


def guess_cluster(row: LandscapeRow, *, interconnect: str, version: str) -> Cluster:
    """Return the cluster of a row by the names of its system, interconnect and NCCL version."""
    words = f"{row.system} {interconnect}"
    gpu, capability, nvlink_gbps = find_gpu(row.system) or (row.system, 80, 0.0)
    link_class = _link_class(words)
    over_nvlink = link_class in ("nvswitch", "nvlink")
    generation = re.search(r"pcie\s*(?:gen)?\s*([345])", words, re.IGNORECASE)
    fabric, nics, nic_gbps = _network(row, interconnect)
    return Cluster(
        name=re.sub(r"[^a-z0-9]+", "-", row.system.lower()).strip("-")[:40].strip("-") or "recorded",
        nodes=row.nodes,
        gpus_per_node=row.gpus_per_node,
        gpu=gpu,
        compute_capability=capability,
        link_class=link_class,
        link_gbps=(nvlink_gbps or 300.0) if over_nvlink else _PCIE_GBPS[generation[1] if generation else "4"],
        fabric=fabric,
        nics_per_node=nics,
        nic_gbps=nic_gbps,
        gpudirect=fabric not in ("none", "ethernet"),
        nccl_version=_version(version),
        description=row.system,
        sources=(row.source, f"guessed from {row.system!r} and {interconnect!r}"),
    )


def _link_class(words: str) -> str:
    low = words.lower()
    if "nvswitch" in low or "nvl72" in low:
        return "nvswitch"
    if "shm" in low or "no p2p" in low or "loopback" in low:
        return "shm"
    if "nvlink" in low or "xgmi" in low:
        return "nvlink"
    return "pcie"


def _network(row: LandscapeRow, interconnect: str) -> tuple[str, int, float]:
    """Return (fabric, ports per node, 1e9 bytes/s per port)."""
    if row.nodes == 1:
        return "none", 0, 0.0
    low = interconnect.lower()
    fabric = next((fabric for word, fabric in _FABRICS if re.search(rf"(?<![a-z]){word}", low)), "ethernet")
    ports = re.search(r"(\d+)\s*x\s*(?:ib\s+)?(\d+)?\s*(g|hdr|edr|ndr)", low)
    rate = {"hdr": 200, "edr": 100, "ndr": 400}
    if ports:
        gbit = int(ports[2]) if ports[2] else rate.get(ports[3], 100)
        return fabric, int(ports[1]), gbit / 8
    return fabric, max(1, row.gpus_per_node), 12.5


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
    "mi355x-2x8": (MI355X, _undisturbed),
    "l40s-1x4": (("l40s_a100_cs244c",), _l40s("4")),
    "l40s-1x2": (("l40s_a100_cs244c",), _l40s("2")),
    "h100-1x4": (("h100_nvswitch_waynehacking8",), _h100),
    "rtx4090-1x4": (("rtx4090x4_shm_and_k500sm_channels",), lambda row: row["system"].startswith("4x RTX 4090")),
    "mi300x-cpx-1x64": (("mi300x_cpx_rccl_sixway",), lambda _row: True),
}
"""Recorded cluster -> its tables and which of their rows are carried."""


def build_table(name: str, folder: Path) -> str:
    """Return the text of a recorded cluster's table.

    Raises:
        InputError: a table cannot be read, holds several landscapes, or has no row of the default.
    """
    tables, wanted = TABLES[name]
    file = LANDSCAPES / f"{name}.toml"
    cluster = parse_cluster_toml(file.read_text(encoding="utf-8"), file.name)
    rows: list[LandscapeRow] = []
    for table in tables:
        found, _ = read_originals(folder / f"{table}.csv", wanted)
        if len(found) > 1:
            names = "; ".join(repr(one.condition or one.rows[0].system) for one in found)
            raise InputError(
                f"{table}.csv: the rows for {name} are of {len(found)} landscapes: {names}",
                hint="choose rows of one in TABLES, or add a remark to _ANNOTATIONS",
            )
        lacking = {row.collective.value for row in found[0].rows if not row.setting.is_default} - {
            row.collective.value for row in found[0].rows if row.setting.is_default
        }
        if lacking:
            raise InputError(
                f"{table}.csv: no row for {name} is recognised as the NCCL default of {', '.join(sorted(lacking))}",
                hint="add its remark to _DEFAULT_REMARK",
            )
        rows += found[0].rows
    text = io.StringIO()
    write_rows((replace(row, nccl_version=str(cluster.version)) for row in rows), text)
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
    except InputError as error:
        print(error.message, file=sys.stderr)
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
