"""The command that keeps the PyTorch worker's ranks alive, and their reports.

The measuring is that of the one-shot worker: every trial carries the arguments that a launch would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ncclt.errors import BenchmarkError
from ncclt.measure.benchmarks.benchmark import BenchmarkCommand
from ncclt.measure.benchmarks.torch_collectives import MEASURING, WORKER, TorchCollectives

SESSION = WORKER.with_name("ncclt_torch_session.py")
CHANNEL = WORKER.with_name("ncclt_torch_channel.py")


def session_command(benchmark: TorchCollectives, *, controller: str, token: Path | None) -> BenchmarkCommand:
    """Return the command of persistent ranks.

    Args:
        benchmark: whose messages will be measured; defines the interpreter, the backend and the ranks' timeout.
        controller: `host:port` at which rank 0 reaches this process.
        token: file with the token of this launch, copied like the benchmark's own files; None = the command is only
            shown.
    """
    argv = (
        *(benchmark.python, str(WORKER), "--measuring", str(MEASURING), "--backend", benchmark.backend),
        *("--timeout-s", f"{benchmark.timeout_s:g}"),
        *("--controller", controller, *(("--token", str(token)) if token else ())),
        *("--session", str(SESSION), "--channel", str(CHANNEL)),
    )
    return BenchmarkCommand(
        argv=argv,
        messages=(),
        variables=(("OMP_NUM_THREADS", "1"),),
        files=(WORKER, MEASURING, SESSION, CHANNEL, *((token,) if token else ())),
    )


def nccl_version(environment: Mapping[str, object]) -> str:
    """Return NCCL's version as reported by the ranks when they met; empty without NCCL (gloo)."""
    equal = environment.get("equal")
    return str(equal.get("version of NCCL", "")) if isinstance(equal, Mapping) else ""


def decided(lines: Sequence[object]) -> tuple[tuple[Mapping[str, object], ...], str]:
    """Return the decisions that the plugin reports, and why its table was not in use; empty = it was.

    Args:
        lines: of its reports (docs/internals/tuner-plugin.md), parsed: first each communicator, then its decisions.

    Raises:
        BenchmarkError: they are not reports of the plugin.
    """
    decisions: list[Mapping[str, object]] = []
    unused, heads = "", 0
    for line in lines:
        if not isinstance(line, Mapping):
            raise BenchmarkError("the report of the plugin cannot be read", hint="the plugin is of another release")
        if "ncclt_plugin_report" in line:
            heads += 1
            unused = unused or str(line.get("not_in_use", ""))
        elif "outcome" in line:
            decisions.append(line)
    if not heads:
        return (), "NCCL did not load it"
    return tuple(decisions), unused
