"""nccl-tests as a benchmark: NVIDIA's own programs, one per collective.

Not tested on a GPU: the commands follow nccl-tests 2.19.6 (src/common.cu), the formats are tested on recorded outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from ncclt.core.message import DTYPE_SIZES, Collective, Message, parse_dtype
from ncclt.core.plural import count_noun
from ncclt.core.trial import Measurement
from ncclt.errors import BenchmarkError, InputError, UsageError
from ncclt.launch.prefixes import clean_text
from ncclt.measure.benchmarks.benchmark import BenchmarkCommand, BenchmarkReading, CommandOutput
from ncclt.measure.benchmarks.nccl_tests.features import LEAST, PROGRAMS, NcclTestsFeatures
from ncclt.measure.benchmarks.nccl_tests.sweep import Sweep, alignment_bytes, plan_runs, requested_size, sweep_of
from ncclt.nccl.nccl_tests.json import parse_json
from ncclt.nccl.nccl_tests.result import NcclTest, NcclTestRow
from ncclt.nccl.nccl_tests.text import parse_text

# torch reduces and broadcasts in place, and gathers and scatters between two buffers; the half of the row that is timed
# the same way is used. nccl-tests has no in-place check for alltoall and sendrecv.
_IN_PLACE = (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE)


def measurement(message: Message, test: NcclTest, *, requested: int, sweep: Sweep, dtype: str) -> Measurement:
    """Return the measurement of a message in a run.

    Args:
        requested: the size that was requested for the message, bytes.
        sweep: the sizes of the run; one that is not among them is interpolated between its neighbours.
        dtype: what was sent, in the spelling of nccl-tests.

    Raises:
        BenchmarkError: a row is missing or unusable, or the number of ranks is not the requested one.
    """
    if test.ranks and test.ranks != message.group_size:
        raise BenchmarkError(
            f"nccl-tests ran on {count_noun(test.ranks, 'rank')}, but {message.label} is sent by {message.group_size}",
            hint="start as many ranks as the job has; groups need a release that knows NCCL_TESTS_SPLIT, with MPI",
        )
    rows = [row for row in test.rows if _has_dtype(row, dtype)]
    measured_bytes = None if requested == message.size_bytes else requested
    if requested in sweep.sizes:
        return replace(_measured(message, requested, rows, test), measured_bytes=measured_bytes)
    below = max(size for size in sweep.sizes if size < requested)
    above = min(size for size in sweep.sizes if size > requested)
    ends = [_measured(message, size, rows, test) for size in (below, above)]
    share = math.log(requested / below) / math.log(above / below)
    time_us = math.exp((1 - share) * math.log(ends[0].time_us) + share * math.log(ends[1].time_us))
    return Measurement(
        message=message,
        samples_us=(time_us,),
        wrong=None if None in (ends[0].wrong, ends[1].wrong) else sum(end.wrong or 0 for end in ends),
        interpolated=True,
        measured_bytes=measured_bytes,
    )


def _measured(message: Message, size: int, rows: Sequence[NcclTestRow], test: NcclTest) -> Measurement:
    candidates = [row for row in rows if row.size_bytes == size]
    if not candidates:
        unreadable = count_noun(test.unreadable_lines, "unreadable line")
        broken = f"; its table has {unreadable}" if test.unreadable_lines else ""
        raise BenchmarkError(
            f"nccl-tests printed no row for {message.label}{broken}",
            hint="it may have ended early, or a log was mixed into its table: unset NCCL_DEBUG",
        )
    # The first row of all includes late connecting and loading; if its size is repeated, its time does not count. Its
    # check does.
    cold = candidates[0] is test.rows[0] and len(candidates) > 1
    samples: tuple[float, ...] = ()
    for row in candidates[cold:]:
        preferred, alternative = row.out_of_place, row.in_place
        if message.collective in _IN_PLACE:
            preferred, alternative = alternative, preferred
        timing = preferred or alternative
        samples += (math.nan,) if timing is None else timing.calls_us or (timing.time_us,)
    if not all(math.isfinite(sample) and sample > 0 for sample in samples):
        raise BenchmarkError(
            f"nccl-tests printed no usable time for {message.label}: {', '.join(f'{s:g}' for s in samples[:8])} µs",
            hint="run the same command by hand",
        )
    checks = [half.wrong for row in candidates for half in (row.out_of_place, row.in_place) if half]
    counts = [wrong for wrong in checks if wrong is not None]
    return Measurement(message=message, samples_us=samples, wrong=sum(counts) if counts else None)


def _has_dtype(row: NcclTestRow, dtype: str) -> bool:
    try:
        return parse_dtype(row.dtype) == parse_dtype(dtype)
    except InputError:
        return False


SPLIT = "NCCL_TESTS_SPLIT"

SPLIT_MASK = "NCCL_TESTS_SPLIT_MASK"

_HINT = "use nccl-tests 2.14 or newer, built with MPI=1, or --benchmark torch_collectives"

WRONG_DATA_EXIT_CODE = 7
"""testNumResults: data came out wrong, or the mean bandwidth was below NCCL_TESTS_MIN_BW."""

ITERATIONS = 20
"""Timed calls per size."""

WARMUP = 5
"""Calls before the first size; at least 5, because they connect the ranks."""

CYCLES = 2
"""Repetitions of each size in a run, if it can: a warm row then replaces the first, cold one."""

# Our dtype -> the argument of -d (common.cu, test_typenames). torch sends bool as uint8; NCCL has no 16-bit integer.
_DTYPE_WORDS = {
    "float64": "double",
    "float32": "float",
    "float16": "half",
    "bfloat16": "bfloat16",
    "float8_e4m3": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "int64": "int64",
    "int32": "int32",
    "int8": "int8",
    "uint64": "uint64",
    "uint32": "uint32",
    "uint8": "uint8",
    "bool": "uint8",
}

_BYTES = "uint8"
"""The common dtype of messages of several dtypes, for collectives where NCCL itself sends only bytes (enqueue.cc)."""

_BYTE_MOVERS = (Collective.ALL_GATHER, Collective.BROADCAST, Collective.ALL_TO_ALL, Collective.SEND_RECV)


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTests:
    """Builds commands of nccl-tests and reads both of its formats.

    Attributes:
        folder: of the programs; None = they are on the PATH.
        features: of the build, see `features.detect`.
        processes: how many the launcher starts. More than 1 need a build with MPI, and all ranks of the job take part:
            smaller groups run at the same time. 1 drives all GPUs of a single group by itself.
        gpus_per_process: of each of several processes.
        max_commands: commands in a launch at most, as far as the messages allow; sizes without a command are
            interpolated between measured neighbours, the last messages first. None = all sizes are measured.
    """

    name: ClassVar[str] = "nccl_tests"

    folder: Path | None = None
    features: NcclTestsFeatures = LEAST
    processes: int = 1
    gpus_per_process: int = 1
    max_commands: int | None = None

    def __post_init__(self) -> None:
        if self.max_commands is not None and self.max_commands < 1:
            raise UsageError(f"a launch needs at least 1 command, not {self.max_commands}")

    def sent_bytes(self, message: Message) -> int:
        """Return the nearest size that nccl-tests send for a message, bytes."""
        return _requested(message, message.dtype)

    def commands(self, messages: Sequence[Message], *, folder: Path | None) -> tuple[BenchmarkCommand, ...]:
        """Plan one command per sequence of sizes of the same collective, dtype and group."""
        groups: dict[tuple[object, ...], list[Message]] = {}
        for message in messages:
            kind = _BYTES if message.collective in _BYTE_MOVERS else message.dtype
            groups.setdefault((message.collective, kind, message.group_size, message.spans_nodes), []).append(message)
        dtypes = [_common_dtype(group) for group in groups.values()]
        kinds = [
            ([_requested(message, dtype) for message in group], _alignment(group[0], dtype))
            for group, dtype in zip(groups.values(), dtypes, strict=True)
        ]
        planned: list[BenchmarkCommand] = []
        plans = plan_runs(kinds, max_runs=self.max_commands)
        for group, dtype, runs in zip(groups.values(), dtypes, plans, strict=True):
            for sweep, covers in runs:
                covered = tuple(message for message in group if _requested(message, dtype) in covers)
                planned.append(self._command(sweep, covered, dtype=dtype, folder=folder, number=len(planned)))
        return tuple(planned)

    def _command(
        self, sweep: Sweep, messages: tuple[Message, ...], *, dtype: str, folder: Path | None, number: int
    ) -> BenchmarkCommand:
        message = messages[0]
        program = PROGRAMS[message.collective]
        output_file = folder / f"{number:03d}-{program}.json" if folder is not None and self.features.json else None
        cycles = CYCLES if self.features.cycles else 1
        argv = (
            str(self.folder / program) if self.folder else program,
            *sweep.arguments,
            *("-d", dtype, "-t", "1", "-g", str(self._gpus(message))),
            *("-w", str(WARMUP), "-n", str(ITERATIONS // cycles), "-c", "1"),
            *(("-N", str(cycles)) if cycles > 1 else ()),
            *(("-I", "1") if output_file and self.features.per_iteration else ()),
            *(("-J", str(output_file)) if output_file else ()),
        )
        variables: tuple[tuple[str, str], ...] = ()
        if self.processes > 1:
            world_size = self.processes * self.gpus_per_process
            variables = group_variables(message, world_size=world_size, features=self.features)
        return BenchmarkCommand(argv=argv, messages=messages, output_file=output_file, variables=variables)

    def _gpus(self, message: Message) -> int:
        if message.group_size < 1:
            raise UsageError(
                f"{message.label}: the number of ranks is unknown", hint="place the workload on the cluster first"
            )
        if self.processes == 1:
            return message.group_size
        if message.group_size % self.gpus_per_process:
            raise UsageError(
                f"{message.label} in a group of {message.group_size} ranks cannot be sent by processes with "
                f"{self.gpus_per_process} GPUs each",
                hint="start one process per GPU",
            )
        return self.gpus_per_process

    def read(self, command: BenchmarkCommand, output: CommandOutput) -> BenchmarkReading:
        """Read the result file if it exists, else the table on standard output."""
        failed_check = _WRONG_DATA_MEANING if output.exit_code == WRONG_DATA_EXIT_CODE else ""
        try:
            test = self._test(command, output)
            sweep, dtype = sweep_of(command.argv), command.argv[command.argv.index("-d") + 1]
            measurements = tuple(
                measurement(m, test, requested=_requested(m, dtype), sweep=sweep, dtype=dtype) for m in command.messages
            )
        except BenchmarkError:
            if failed_check:
                return BenchmarkReading(measurements=(), failed_check=failed_check)
            raise
        if test.out_of_bounds:
            failed_check = f"{test.out_of_bounds} values out of bounds"
        return BenchmarkReading(measurements=measurements, failed_check=failed_check)

    def _test(self, command: BenchmarkCommand, output: CommandOutput) -> NcclTest:
        # The file may be on another machine: the table has the same data, less precisely.
        if command.output_file is not None and command.output_file.is_file():
            return parse_json(command.output_file.read_text(encoding="utf-8", errors="replace"))
        tests = [test for test in parse_text(clean_text(output.stdout), errors=output.stderr) if test.rows]
        if len(tests) > 1:
            raise BenchmarkError(
                f"{len(tests)} runs of nccl-tests answered where one was started",
                hint="a build without MPI runs once per process: give one process, or a build with MPI=1",
            )
        return tests[0]


_WRONG_DATA_MEANING = f"exit code {WRONG_DATA_EXIT_CODE}: nccl-tests found wrong data"


def _common_dtype(group: Sequence[Message]) -> str:
    for message in group:
        if message.dtype not in _DTYPE_WORDS:
            raise UsageError(f"NCCL cannot send {message.label}", hint=f"it knows {', '.join(_DTYPE_WORDS)}")
    words = {_DTYPE_WORDS[message.dtype] for message in group}
    return words.pop() if len(words) == 1 else _BYTES


def _requested(message: Message, dtype: str) -> int:
    return requested_size(message.size_bytes, _alignment(message, dtype))


def _alignment(message: Message, dtype: str) -> int:
    element = 1 if dtype == _BYTES else DTYPE_SIZES[message.dtype]
    return alignment_bytes(message.collective, message.group_size, element)


def group_variables(message: Message, *, world_size: int, features: NcclTestsFeatures) -> tuple[tuple[str, str], ...]:
    """Return the variables that divide a job into groups of the message's size; all groups run at the same time.

    nccl-tests runs one communicator per group and prints the rows of the group of rank 0, with the mean time over all
    groups (common.cu, Allreduce over MPI_COMM_WORLD). Groups inside a node are neighbours: `DIV`. Groups across nodes
    take every n-th rank, so they span as many nodes as possible, as the cost model assumes
    (nccl/cost_model/topology.py): `MOD`.

    Args:
        world_size: ranks of the job.
        features: of the build; with unknown support the variables are set, and the result shows whether it worked.

    Raises:
        UsageError: the job cannot be divided like this, or this build of nccl-tests cannot do it.
    """
    size = message.group_size
    if size == world_size:
        return ()
    if not 0 < size <= world_size or world_size % size:
        raise UsageError(
            f"{message.label} is sent by groups of {size} ranks, into which {world_size} ranks cannot be divided",
            hint="place the workload on the cluster first, or choose nodes and GPUs that its groups divide",
        )
    count = world_size // size
    if features.split is not False:
        return ((SPLIT, f"MOD {count}" if message.spans_nodes else f"DIV {size}"),)
    # The mask selects bits of the rank, so it works only for powers of two.
    if not features.split_mask or count & (count - 1) or size & (size - 1):
        raise UsageError(
            f"{message.label} is sent by groups of {size} of {world_size} ranks, which this nccl-tests cannot form",
            hint=_HINT,
        )
    return ((SPLIT_MASK, hex(count - 1 if message.spans_nodes else world_size - size)),)
