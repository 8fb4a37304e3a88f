"""nccl-tests as a benchmark: NVIDIA's own programs, one per collective.

Not tried on a GPU: the commands follow nccl-tests 2.19.6 (src/common.cu), the formats are proven on recorded outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclt.core.message import DTYPE_SIZES, Collective, Message, parse_dtype
from ncclt.core.trial import Measurement
from ncclt.core.version import NcclVersion
from ncclt.errors import BenchmarkError, InputError, UsageError
from ncclt.measure.benchmark import Benchmark, BenchmarkCommand, CommandOutput, Reading
from ncclt.measure.nccl_tests_json import parse_json
from ncclt.measure.nccl_tests_result import NcclTest, NcclTestRow
from ncclt.measure.nccl_tests_sweep import Sweep, alignment_bytes, plan_sweeps, requested_size
from ncclt.measure.nccl_tests_text import parse_text

PROGRAMS: Mapping[Collective, str] = {
    Collective.ALL_REDUCE: "all_reduce_perf",
    Collective.ALL_GATHER: "all_gather_perf",
    Collective.REDUCE_SCATTER: "reduce_scatter_perf",
    Collective.BROADCAST: "broadcast_perf",
    Collective.REDUCE: "reduce_perf",
    Collective.ALL_TO_ALL: "alltoall_perf",
    Collective.SEND_RECV: "sendrecv_perf",
}
"""Which program measures which collective (src/Makefile)."""

JSON_SINCE = NcclVersion(2, 17, 3)
"""First release of nccl-tests with `-J` (nccl.md 7.2)."""

WRONG_DATA_EXIT_CODE = 7
"""testNumResults: data came out wrong, or the mean bandwidth was below NCCL_TESTS_MIN_BW (nccl.md 7.4)."""

# Our dtype -> the word for -d (common.cu, test_typenames). torch sends bool as uint8; NCCL has no 16-bit integer.
_DTYPE_WORDS = {
    "float64": "double", "float32": "float", "float16": "half", "bfloat16": "bfloat16", "float8_e4m3": "f8e4m3",
    "float8_e5m2": "f8e5m2", "int64": "int64", "int32": "int32", "int8": "int8", "uint64": "uint64",
    "uint32": "uint32", "uint8": "uint8", "bool": "uint8",
}  # fmt: skip

# torch reduces and broadcasts in place, and gathers and scatters between two buffers; the half of the row is taken
# that is timed the same way. nccl-tests has no in-place check for alltoall and sendrecv.
_IN_PLACE = (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTests:
    """Builds commands of nccl-tests and reads both of its formats.

    Attributes:
        folder: where the programs lie; None = they are on the PATH.
        suffix: put behind each program's name (NAME_SUFFIX of the build, for example `_mpi`).
        version: of nccl-tests; None = not known, so the table on standard output is read.
        processes: how many the launcher starts; more than 1 need a build with MPI.
        threads: per process (-t).
        iterations, warmup: per size (-n, -w); at least 5 warm-ups, for the first calls connect the ranks.
    """

    folder: Path | None = None
    suffix: str = ""
    version: NcclVersion | None = None
    processes: int = 1
    threads: int = 1
    iterations: int = 20
    warmup: int = 5

    def __post_init__(self) -> None:
        if self.warmup < 5:
            raise UsageError(f"nccl-tests needs at least 5 warm-up iterations, not {self.warmup}")
        if min(self.iterations, self.processes, self.threads) < 1:
            raise UsageError("nccl-tests needs at least 1 iteration, 1 process and 1 thread")

    @property
    def name(self) -> str:
        """Return the word by which people ask for this benchmark."""
        return "nccl_tests"

    def commands(self, messages: Sequence[Message], *, folder: Path | None) -> tuple[BenchmarkCommand, ...]:
        """Plan one command per sequence of sizes of the same collective, dtype and group."""
        groups: dict[tuple[Collective, str, int], list[Message]] = {}
        for message in messages:
            groups.setdefault((message.collective, message.dtype, message.group_size), []).append(message)
        planned: list[BenchmarkCommand] = []
        for group in groups.values():
            by_size: dict[int, list[Message]] = {}
            for message in group:
                by_size.setdefault(requested_size(message.size_bytes, _alignment(message)), []).append(message)
            for sweep in plan_sweeps(by_size):
                covered = tuple(message for size in sweep.sizes for message in by_size[size])
                planned.append(self._command(sweep, covered, folder=folder, number=len(planned)))
        return tuple(planned)

    def _command(
        self, sweep: Sweep, messages: tuple[Message, ...], *, folder: Path | None, number: int
    ) -> BenchmarkCommand:
        message = messages[0]
        program = PROGRAMS[message.collective] + self.suffix
        writes_json = folder is not None and self.version is not None and self.version >= JSON_SINCE
        output_file = folder / f"{number:03d}-{program}.json" if folder is not None and writes_json else None
        argv = (
            str(self.folder / program) if self.folder else program,
            *sweep.arguments,
            *("-d", _dtype_word(message)),
            *("-t", str(self.threads), "-g", str(self._gpus_per_thread(message))),
            *("-w", str(self.warmup), "-n", str(self.iterations), "-c", "1"),
            *(("-J", str(output_file)) if output_file else ()),
        )
        return BenchmarkCommand(argv=argv, messages=messages, output_file=output_file)

    def _gpus_per_thread(self, message: Message) -> int:
        threads = self.processes * self.threads
        if message.group_size < 1 or message.group_size % threads:
            raise UsageError(
                f"{message.label} in a group of {message.group_size} ranks cannot be spread over {threads} threads",
                hint="place the workload on the cluster first, and start as many processes as divide its groups",
            )
        return message.group_size // threads

    def read(self, command: BenchmarkCommand, output: CommandOutput) -> Reading:
        """Read the result file where there is one, else the table on standard output."""
        says_wrong = output.exit_code == WRONG_DATA_EXIT_CODE
        try:
            test = self._test(command, output)
            measurements = tuple(_measurement(message, test) for message in command.messages)
        except BenchmarkError:
            if says_wrong:
                return Reading(measurements=(), failed_check=_WRONG_DATA_MEANING)
            raise
        if test.out_of_bounds:
            return Reading(measurements=measurements, failed_check=f"{test.out_of_bounds} values out of bounds")
        return Reading(measurements=measurements, failed_check=_WRONG_DATA_MEANING if says_wrong else "")

    def _test(self, command: BenchmarkCommand, output: CommandOutput) -> NcclTest:
        # With a launcher that runs elsewhere the file may be out of reach: the table says the same, less precisely.
        if command.output_file is not None and command.output_file.is_file():
            return parse_json(command.output_file.read_text(encoding="utf-8", errors="replace"))
        tests = [test for test in parse_text(f"{output.stdout}\n{output.stderr}") if test.rows]
        if len(tests) > 1:
            raise BenchmarkError(
                f"{len(tests)} runs of nccl-tests answered where one was started",
                hint="a build without MPI runs once per process: give one process, or a build with MPI=1",
            )
        return tests[0]


_WRONG_DATA_MEANING = f"exit code {WRONG_DATA_EXIT_CODE}: nccl-tests found wrong data"


def _alignment(message: Message) -> int:
    return alignment_bytes(message.collective, message.group_size, DTYPE_SIZES[message.dtype])


def _dtype_word(message: Message) -> str:
    if message.dtype not in _DTYPE_WORDS:
        raise UsageError(f"NCCL cannot send {message.label}", hint=f"it knows {', '.join(_DTYPE_WORDS)}")
    return _DTYPE_WORDS[message.dtype]


def _measurement(message: Message, test: NcclTest) -> Measurement:
    """Find the rows of a message: the nearest size, at most half an alignment away; several rows are samples."""
    alignment = _alignment(message)
    target = requested_size(message.size_bytes, alignment)
    rows = [row for row in test.rows if row.size_bytes == target and _has_dtype(row, message)]
    if test.ranks and test.ranks != message.group_size:
        raise BenchmarkError(
            f"nccl-tests ran on {test.ranks} ranks, but {message.label} is sent by {message.group_size}",
            hint="start as many ranks as the group has",
        )
    if not rows:
        broken = f"; {test.unreadable_lines} lines of its table are unreadable" if test.unreadable_lines else ""
        raise BenchmarkError(
            f"nccl-tests printed no row for {message.label}{broken}",
            hint="it may have ended early, or a log was mixed into its table: unset NCCL_DEBUG",
        )
    samples = tuple(_time_us(row, message) for row in rows)
    if not all(math.isfinite(sample) and sample > 0 for sample in samples):
        raise BenchmarkError(
            f"nccl-tests printed no usable time for {message.label}: {', '.join(f'{s:g}' for s in samples)} µs",
            hint="run the same command by hand",
        )
    checks = [half.wrong for row in rows for half in (row.out_of_place, row.in_place) if half]
    counts = [wrong for wrong in checks if wrong is not None]
    return Measurement(message=message, samples_us=samples, wrong=sum(counts) if counts else None)


def _has_dtype(row: NcclTestRow, message: Message) -> bool:
    try:
        return parse_dtype(row.dtype) == parse_dtype(_dtype_word(message))
    except InputError:
        return False


def _time_us(row: NcclTestRow, message: Message) -> float:
    wanted, other = row.out_of_place, row.in_place
    if message.collective in _IN_PLACE:
        wanted, other = other, wanted
    half = wanted or other
    return half.time_us if half else math.nan


def create(
    *,
    folder: Path | None = None,
    suffix: str = "",
    version: NcclVersion | None = None,
    processes: int = 1,
    iterations: int = 20,
) -> Benchmark:
    """Return nccl-tests as a benchmark; see `NcclTests` for the arguments."""
    return NcclTests(folder=folder, suffix=suffix, version=version, processes=processes, iterations=iterations)
