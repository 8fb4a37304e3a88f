"""Reads files that were saved on the cluster: matrices, reports of GPUs, logs and configuration files."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from ncclt.core.printed_costs import PrintedCosts
from ncclt.errors import InputError
from ncclt.health.doctor.adapters import parse_adapters, shows_adapters
from ncclt.health.doctor.conf_file import parse_conf_file
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.gpu_report import parse_gpu_report
from ncclt.health.doctor.matrix import is_matrix_header, parse_matrix
from ncclt.health.doctor.nccl_topology import is_nccl_topology, parse_nccl_topology
from ncclt.nccl.log.facts import LogFacts
from ncclt.nccl.log.lines import BY_NCCL
from ncclt.nccl.log.startup import LogReader, read_printed_costs
from ncclt.profile.source import Meter, list_files, open_regular, read_document, regular_files, unpack

HEAD_BYTES = 256 * 1024
"""Read to recognise what a file is."""

_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?[\"']?NCCL_\w+\s*=")

MOST_LOG_BYTES = 256 * 1024 * 1024
"""Max size of all logs that are read: enough for the start of a thousand ranks."""

_MOST_NAMED = 3
"""Most files named in one message."""

_MOST_LINE_CHARACTERS = 64 * 1024
"""Longer lines are read in pieces: a file without line ends must not exhaust memory."""

_HINT = (
    "give outputs of `nvidia-smi topo -m`, `nvidia-smi -q -x`, `ibstat`, NCCL's log (NCCL_DEBUG=INFO), its topology "
    "(NCCL_TOPO_DUMP_FILE), nccl.conf"
)

_AMD = re.compile(r"ROCm System Management|rocm-smi|AMDSMI|AMD-SMI|\bamdgpu\b|\bGPU\[\d+\]\s*:|\bXGMI\b")
_REFUSED = (
    (
        _AMD,
        "is about AMD GPUs, which are not supported: ncclt tunes NCCL on NVIDIA GPUs",
        "give files of a machine with NVIDIA GPUs",
    ),
    (
        re.compile(r"NVIDIA-SMI has failed|No devices were found|Failed to initialize NVML|nvidia-smi: .*not found"),
        "holds the failure of nvidia-smi",
        "run it on a node whose driver works; `ncclt doctor` there says more",
    ),
    (
        re.compile(r"NV#\s+=|^Legend:", re.M),
        "holds the legend of `nvidia-smi topo -m` without its matrix",
        "run it on a node with GPUs and save the whole output",
    ),
    (
        re.compile(r"<graphs\b"),
        "holds the graphs of NCCL (NCCL_GRAPH_DUMP_FILE), not its topology",
        "run a job with NCCL_TOPO_DUMP_FILE=FILE",
    ),
)
"""Signs of an unusable file, the problem, and the remedy."""


def read_files(paths: Sequence[Path]) -> Facts:
    """Read files, and the files of folders, as one job on equal nodes.

    Kinds are recognised by content. All logs are read together, because NCCL writes one per process. A file that its
    folder brought along and that cannot be used is skipped, and named in `missing`.

    Raises:
        InputError: files that were named are missing, damaged, or of an unknown kind; it names all of them.
    """
    with regular_files(paths) as files:
        return _read_facts(files)


def read_logs(paths: Sequence[Path], *, ignored: frozenset[str]) -> tuple[LogFacts, tuple[str, ...]]:
    """Read the logs of one job.

    Args:
        paths: files that hold lines of NCCL alone; empty ones are left out.
        ignored: variables that were only set to get the log.

    Returns:
        the facts, and what was not read, one sentence each.

    Raises:
        OSError: one has gone.
    """
    log = LogReader(ignored=ignored)
    problems: list[str] = []
    paths = [path for path in paths if path.stat().st_size]
    problems += _read_in_turn(paths, log, lambda _path, error: problems.append(error.message))
    return log.facts(), tuple(problems)


def _read_in_turn(paths: Sequence[Path], log: LogReader, refuse: Callable[[Path, InputError], None]) -> tuple[str, ...]:
    """Read logs up to `MOST_LOG_BYTES` together, each at least up to an equal share; return what was not read.

    Args:
        paths: of the logs.
        refuse: called with each file that cannot be read.
    """
    remaining, cut = MOST_LOG_BYTES, []
    # Short ones first: the rest of their shares is for the long ones.
    ordered = sorted(paths, key=lambda path: path.stat().st_size > MOST_LOG_BYTES // len(paths))
    for number, path in enumerate(ordered):
        share = remaining // (len(ordered) - number)
        try:
            with _open_lines(path) as lines:
                head = _Head(lines, share)
                remaining -= share
                log.read(head, path.name)
        except InputError as error:
            refuse(path, error)
            continue
        remaining += head.unused
        cut += [path.name] if head.is_cut else []
    names = ", ".join(cut[:_MOST_NAMED]) + (f" and {len(cut) - _MOST_NAMED} more" if len(cut) > _MOST_NAMED else "")
    return (f"logs are read up to {MOST_LOG_BYTES >> 20} MiB in total: the end of {names} was not",) if cut else ()


class _Head:
    """First lines of a file.

    Attributes:
        unused: characters that were not needed.
        is_cut: there are more lines.
    """

    def __init__(self, lines: Iterator[str], characters: int) -> None:
        self._lines, self.unused, self.is_cut = lines, characters, False

    def __iter__(self) -> Iterator[str]:
        """Yield the lines."""
        for line in self._lines:
            if len(line) > self.unused:
                self.is_cut = True
                return
            self.unused -= len(line)
            yield line


def _read_facts(paths: Sequence[Path]) -> Facts:
    parts: dict[str, list[Any]] = defaultdict(list)
    logs: dict[Path, bool] = {}
    skipped: list[str] = []
    refused: list[InputError] = []

    def refuse(error: InputError, *, required: bool) -> None:
        if required:
            refused.append(error)
        else:
            skipped.append(f"skipped: {error.message}")

    for path, required in list_files(paths):
        try:
            kinds = _recognise_file(path)
            if Kind.LOG in kinds:
                logs[path] = required
            for field, items in _read(path, kinds):
                parts[field] += items
            if not kinds and required:
                refused.append(_build_refusal(path))
            elif not kinds:
                skipped.append(f"{path.name} was skipped: it is not a file that the doctor can read")
        except InputError as error:
            refuse(error, required=required)
    log = LogReader()
    skipped += _read_in_turn(tuple(logs), log, lambda path, error: refuse(error, required=logs[path]))
    if refused:
        raise InputError("; ".join(error.message for error in refused), hint=refused[0].hint)
    if not (parts or logs):
        reasons = f": {'; '.join(skipped)}" if skipped else ""
        raise InputError(f"nothing in {', '.join(map(str, paths))} can be read by the doctor{reasons}", hint=_HINT)
    parts["adapters"] += [nic for topology in parts["topologies"] for nic in topology.adapters]
    fields: dict[str, Any] = {field: tuple(items) for field, items in parts.items()}
    return Facts(log=log.facts(), missing=tuple(skipped), **fields)


def _recognise_file(path: Path) -> frozenset[Kind]:
    """Return the kinds of a file; empty = none that is known.

    Raises:
        InputError: it is empty, damaged or cannot be read.
    """
    with _open(path) as stream:
        head = stream.read(HEAD_BYTES)
    if not head.strip():
        raise InputError(f"{path} is empty", hint="did the command that wrote it succeed?")
    kinds = recognise(head)
    # rocm-smi prints matrices too, and their cells are numbers.
    is_amd = kinds == {Kind.MATRIX} and _AMD.search(head.decode(errors="replace"))
    return frozenset() if is_amd else kinds


def _read(path: Path, kinds: frozenset[Kind]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield (field of Facts, what the file adds to it), except for a log.

    Raises:
        InputError: it is damaged or cannot be read.
    """
    for kind, (field, open_content, parse) in _PARSERS.items():
        if kind in kinds:
            with open_content(path) as content:
                parsed = parse(content, path.name)
                yield field, parsed if kind is Kind.ADAPTERS else [parsed]


def read_printed_costs_file(path: Path) -> PrintedCosts:
    """Read the tables of latencies and bandwidths that NCCL printed into a log.

    Raises:
        InputError: the file is missing or damaged, or has no usable table.
    """
    with regular_files([path]) as (file,), _open_lines(file) as lines:
        return read_printed_costs(lines, file.name)


def _build_refusal(path: Path) -> InputError:
    """Return the error for a file of no known kind; it names what the file is, where that is known."""
    with open_regular(path) as raw:  # as it is: prefixes of launchers look like `sh: nvidia-smi:`
        text = unpack(raw, Meter(raw), path.name).read(HEAD_BYTES).decode(errors="replace")
    for pattern, problem, hint in _REFUSED:
        if pattern.search(text):
            return InputError(f"{path} {problem}", hint=hint)
    return InputError(f"{path} is not a file that the doctor can read", hint=_HINT)


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, unpacked if it is gzipped; turn failures into InputError."""
    try:
        with open_regular(path) as raw:
            yield read_document(path.name, unpack(raw, Meter(raw), path.name)).stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{path} is damaged or cut off: {error}", hint="copy it again; check it with `gzip -t`"
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", hint="check the path") from error


@contextmanager
def _open_lines(path: Path) -> Iterator[Iterator[str]]:
    with _open(path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="\n")
        try:
            yield iter(lambda: text.readline(_MOST_LINE_CHARACTERS), "")
        finally:
            text.detach()  # the stream is closed by the caller


class Kind(StrEnum):
    """Kind of content of a file; a text may hold a matrix and a log."""

    GPU_REPORT = "nvidia-smi -q -x"
    MATRIX = "nvidia-smi topo -m"
    TOPOLOGY = "topology of NCCL"
    ADAPTERS = "ibstat"
    LOG = "NCCL log"
    CONF = "NCCL configuration file"


_PARSERS: dict[Kind, tuple[str, Callable[[Path], AbstractContextManager[Any]], Callable[[Any, str], Any]]] = {
    Kind.GPU_REPORT: ("gpu_reports", _open, parse_gpu_report),
    Kind.TOPOLOGY: ("topologies", _open, parse_nccl_topology),
    Kind.MATRIX: ("matrices", _open_lines, parse_matrix),
    Kind.ADAPTERS: ("adapters", _open_lines, parse_adapters),
    Kind.CONF: ("conf_files", _open_lines, parse_conf_file),
}
"""Kind -> the field of Facts, how the file is opened, and its reader; all but one return one item of the field."""


def recognise(head: bytes) -> frozenset[Kind]:
    """Return the kinds that the beginning of a file shows; empty = none that is known."""
    if b"<nvidia_smi_log" in head:
        return frozenset({Kind.GPU_REPORT})
    if is_nccl_topology(head):
        return frozenset({Kind.TOPOLOGY})
    lines = head.decode(errors="replace").splitlines()
    signs: dict[Kind, Callable[[str], object]] = {
        Kind.MATRIX: is_matrix_header,
        Kind.LOG: BY_NCCL.search,
        Kind.ADAPTERS: shows_adapters,
    }
    kinds = {kind for kind, shows in signs.items() if any(map(shows, lines))}
    content = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not kinds and any(map(_ASSIGNMENT.match, content)) and all("=" in line for line in content[:-1]):
        kinds.add(Kind.CONF)
    return frozenset(kinds)
