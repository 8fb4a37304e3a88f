"""PyTorch's own collectives as a benchmark, for sites whose images contain PyTorch but not nccl-tests.

One process per rank runs a worker that imports nothing of ncclt. One command measures all messages, with the process
groups of the workload: the whole world, groups within nodes, groups across nodes; all groups of a kind work at the same
time, as in a training, and the slowest one counts.

Not tested on a GPU; tested on gloo, with PyTorch 2.13.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from ncclt.core.message import DTYPE_SIZES, Collective, Message
from ncclt.core.trial import Measurement
from ncclt.errors import BenchmarkError, UsageError
from ncclt.measure.benchmarks.benchmark import BenchmarkCommand, BenchmarkReading, CommandOutput
from ncclt.measure.benchmarks.torch_collectives_result import TorchResult, failed_rank, find_result, parse_result

WORKER = Path(__file__).parent / "torch_worker" / "ncclt_torch_worker.py"
MEASURING = WORKER.with_name("ncclt_torch_measuring.py")

BACKENDS = ("nccl", "gloo")
LOADS = ("gemm",)
"""What can run beside the messages."""

CARRIERS: Mapping[str, str] = {
    "float8_e4m3": "uint8",
    "float8_e5m2": "uint8",
    "int16": "int8",
    "uint64": "int64",
    "uint32": "int32",
    "bool": "uint8",
}
"""dtypes that not every backend can reduce, and the dtype sent instead: NCCL's choice depends only on bytes."""

# The size of these is that of the buffer with one part for each rank.
_ONE_PART_PER_RANK = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)

_HINT = "run the same command by hand; `ncclt doctor` looks for the usual causes"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCollectives:
    """Builds the command of the worker's ranks and reads what rank 0 reports.

    Attributes:
        backend: of torch.distributed, `nccl` or `gloo` (CPU only; NCCL variables do not affect it).
        python: the interpreter that has PyTorch, where the ranks run.
        budget_s: for timing one message. Calls are timed until the 95 % interval of their median is within 2 % of it,
            until 256 are timed, or until this is spent; at least 8.
        timeout_s: how long a rank waits for others before it exits; slightly less than the launcher's own timeout, so
            that the reason can still be reported.
        beside: `gemm` = a matrix product runs at the same time on each rank, because winners change under load.
        enough_us: message -> time per call, µs, above which its first batch of samples is enough; all others are
            sampled as described for `budget_s`.
    """

    name: ClassVar[str] = "torch_collectives"

    backend: str = "nccl"
    python: str = sys.executable
    budget_s: float = 0.5
    timeout_s: float = 90.0
    beside: str | None = None
    enough_us: Mapping[Message, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise UsageError(f"unknown backend {self.backend!r}", hint=f"one of {', '.join(BACKENDS)}")
        if self.beside is not None and self.beside not in LOADS:
            raise UsageError(f"{self.beside!r} cannot run beside the collectives", hint=f"one of {', '.join(LOADS)}")
        if not (0 < self.budget_s < float("inf") and 0 < self.timeout_s < float("inf")):
            raise UsageError("the budget and the timeout of the PyTorch benchmark need some seconds each")

    def paced(self, enough_us: Mapping[Message, float]) -> TorchCollectives:
        """Return this benchmark with other times above which a first batch is enough, µs."""
        return replace(self, enough_us=enough_us)

    def commands(self, messages: Sequence[Message], *, folder: Path | None) -> tuple[BenchmarkCommand, ...]:
        """Plan one command for all messages."""
        if not messages:
            return ()
        output_file = folder / "torch_collectives.json" if folder is not None else None
        enough = [f"{self.enough_us.get(message, 0.0):.6g}" for message in messages]
        argv = (
            *(self.python, str(WORKER), "--measuring", str(MEASURING), "--backend", self.backend),
            *("--budget-s", f"{self.budget_s:g}", "--timeout-s", f"{self.timeout_s:g}"),
            *(("--beside", self.beside) if self.beside else ()),
            *(("--output", str(output_file)) if output_file else ()),
            *(("--enough-us", *enough) if any(message in self.enough_us for message in messages) else ()),
            *("--messages", *map(worker_word, messages)),
        )
        return (
            BenchmarkCommand(
                argv=argv,
                messages=tuple(messages),
                output_file=output_file,
                # One thread per rank; otherwise the ranks of a node disturb each other.
                variables=(("OMP_NUM_THREADS", "1"),),
                files=(WORKER, MEASURING),
            ),
        )

    def read(self, command: BenchmarkCommand, output: CommandOutput) -> BenchmarkReading:
        """Read the result file if it is on this machine, else what rank 0 printed."""
        printed = f"{output.stdout}\n{output.stderr}"
        if command.output_file is not None and command.output_file.is_file():
            text = command.output_file.read_text(encoding="utf-8", errors="replace")
        else:
            text = find_result(printed)
        result = parse_result(text)
        if result.error:
            reason = f"{failed_rank(printed) or result.error}"
            if result.wrong:
                return BenchmarkReading(
                    measurements=(), failed_check=f"{result.wrong} elements came out wrong, then: {reason}"
                )
            raise BenchmarkError(f"the PyTorch benchmark ended early: {reason}", hint=_HINT)
        return BenchmarkReading(measurements=self._measurements(command.messages, result))

    def _measurements(self, messages: Sequence[Message], result: TorchResult) -> tuple[Measurement, ...]:
        expected = [worker_word(message) for message in messages]
        found = [row.word for row in result.rows]
        if found != expected:
            missing = [message.label for message in messages if worker_word(message) not in found]
            what = f"no time for {', '.join(missing[:3])}" if missing else "times of other messages than were asked for"
            raise BenchmarkError(f"the PyTorch benchmark reports {what}", hint=_HINT)
        if result.beside != self.beside:
            raise BenchmarkError(
                f"{self.beside or 'nothing'} should have run beside the messages, and {result.beside or 'nothing'} did",
                hint="the worker is of another release of ncclt",
            )
        return tuple(
            Measurement(message=message, samples_us=row.samples_us, wrong=row.wrong)
            for message, row in zip(messages, result.rows, strict=True)
        )


def worker_word(message: Message) -> str:
    """Write a message as the worker reads it, `all_reduce:float32:4232978:8:across`.

    The number counts elements of the dtype that is sent, for all_gather, reduce_scatter and all_to_all in the part of
    one rank. A size that is not a multiple of whole elements and equal parts is rounded up.

    Raises:
        UsageError: the group is not known, or has only one rank.
    """
    if message.group_size < 2:
        raise UsageError(
            f"{message.label} needs a group of at least 2 ranks, not {message.group_size}",
            hint="place the workload on the cluster first",
        )
    size = DTYPE_SIZES[message.dtype]
    parts = message.group_size if message.collective in _ONE_PART_PER_RANK else 1
    elements = -(-message.size_bytes // (size * parts))
    carrier = CARRIERS.get(message.dtype, message.dtype)
    words = [message.collective, carrier, elements * size // DTYPE_SIZES[carrier], message.group_size]
    return ":".join(map(str, words)) + (":across" if message.spans_nodes else "")
