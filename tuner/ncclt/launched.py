"""The runner that launches real commands: a benchmark says what runs, a launcher says where.

Not tried on a GPU: the outcomes are proven with a stand-in for nccl-tests that fails in every way it can.
"""

from __future__ import annotations

import re
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclt.core.cluster import Cluster
from ncclt.core.legality import Protocol
from ncclt.core.message import Message
from ncclt.core.setting import Setting
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.errors import BenchmarkError, SettingError
from ncclt.launch.launcher import Launcher, LaunchResult
from ncclt.measure.benchmark import Benchmark, BenchmarkCommand, CommandOutput

DETAIL_LINES = 20
"""Lines of output that a failed trial keeps for people."""

_DETAIL_LINE_CHARACTERS = 400
_NOT_STARTED = (126, 127)  # a shell's words for `cannot be executed` and `not found` (POSIX sh, 2.8.2)
_NO_ALGORITHM = re.compile(r"(?i)no algorithm/protocol")  # NCCL's own words (enqueue.cc, ncclGetAlgoInfo)
_OUT_OF_MEMORY = re.compile(r"(?i)\bout of memory\b")
_SECRET = re.compile(r"(?i)(\b\w*(?:token|secret|passw\w*|api_?key|credential)\w*\s*[=:]\s*)\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutRule:
    """How long one command may take: a start, and every byte at a speed that nobody would want to keep.

    Attributes:
        start_s: loading CUDA and connecting all ranks; minutes on a large cluster, seconds on one node.
        slowest_gbps: algorithm bandwidth below which waiting is not worth it, 1e9 bytes/s.
        calls: of each message in one command: warm-up, timed and checked, out of place and in place.
    """

    start_s: float = 120.0
    slowest_gbps: float = 0.5
    calls: int = 64

    def timeout_s(self, messages: Sequence[Message]) -> float:
        """Return the time one command gets for some messages, seconds."""
        return self.start_s + self.calls * sum(m.size_bytes for m in messages) / (self.slowest_gbps * 1e9)


class LaunchedRunner:
    """Measures settings by launching a benchmark: the `Runner` of every launcher.

    A trial launches the commands of the benchmark one after another and ends at the first that fails.

    Args:
        benchmark: what runs.
        launcher: where it runs.
        cluster: what is measured, sized to the job.
        variables: the variables that force a setting upon NCCL there; may raise SettingError.
        timeouts: how long a command may take.
        scratch: where each trial's folder for result files is made; None = the system's place for temporary files.
    """

    def __init__(
        self,
        *,
        benchmark: Benchmark,
        launcher: Launcher,
        cluster: Cluster,
        variables: Callable[[Setting], Mapping[str, str]],
        timeouts: TimeoutRule | None = None,
        scratch: Path | None = None,
    ) -> None:
        self._benchmark = benchmark
        self._launcher = launcher
        self._cluster = cluster
        self._variables = variables
        self._timeouts = timeouts or TimeoutRule()
        self._scratch = scratch
        self._killed = False

    @property
    def name(self) -> str:
        """Return the launcher's word."""
        return self._launcher.name

    @property
    def simulated(self) -> bool:
        """Tell that these times are real."""
        return False

    @property
    def cluster(self) -> Cluster:
        """Return the cluster that is measured."""
        return self._cluster

    def kill(self) -> None:
        """End the trial at once: `measure` raises KeyboardInterrupt, now and from now on."""
        self._killed = True
        self._launcher.kill()

    def measure(self, setting: Setting, messages: Sequence[Message], *, repeat: int) -> TrialResult:
        """Launch once under `setting` and measure all messages.

        Raises:
            UsageError: the benchmark cannot measure one of the messages, whatever the setting.
            KeyboardInterrupt: `kill` was called.
        """
        try:
            variables = _safe_variables(setting, self._variables)
        except SettingError as error:
            return TrialResult(outcome=Outcome.INVALID, detail=error.message)
        # The folder is readable by its owner alone (mkdtemp) and short-lived: nccl-tests writes the environment there.
        with tempfile.TemporaryDirectory(prefix=f"ncclt-{setting.digest()}-{repeat}-", dir=self._scratch) as folder:
            return self._trial(variables, messages, Path(folder))

    def _trial(self, variables: Mapping[str, str], messages: Sequence[Message], folder: Path) -> TrialResult:
        measured: dict[Message, Measurement] = {}
        wall_s = 0.0
        result = TrialResult(outcome=Outcome.OK)
        for command in self._benchmark.commands(messages, folder=folder):
            if self._killed:
                raise KeyboardInterrupt
            launch = self._launcher.run(
                self._launcher.plan(
                    command.argv,
                    variables={**dict(command.variables), **variables},
                    timeout_s=self._timeouts.timeout_s(command.messages),
                    files=command.files,
                )
            )
            if launch.killed:
                raise KeyboardInterrupt
            wall_s += launch.wall_s
            result = _judge(self._benchmark, command, launch)
            measured |= {m.message: m for m in result.measurements}
            if result.outcome is not Outcome.OK:
                break
        return TrialResult(
            outcome=result.outcome,
            measurements=tuple(measured[m] for m in messages if m in measured),
            detail=result.detail,
            wall_s=wall_s,
        )


def _safe_variables(setting: Setting, variables: Callable[[Setting], Mapping[str, str]]) -> Mapping[str, str]:
    """Return the variables of a setting, but refuse those that would make NCCL send data in an unsafe way.

    NCCL takes LL128 in NCCL_PROTO as an order, also where its own rule forbids it and stores of 128 bytes may be torn
    (graph/tuning.cc); only the tuner plugin can ask for it without overruling NCCL.
    """
    if setting.protocol is Protocol.LL128:
        raise SettingError("LL128 cannot be forced by variables safely, so this setting was not launched")
    return variables(setting)


def _judge(benchmark: Benchmark, command: BenchmarkCommand, launch: LaunchResult) -> TrialResult:
    """Say how one command ended; wrong data goes before a crash, for it is the worse of the two."""
    if launch.failure:
        return TrialResult(outcome=Outcome.INVALID, detail=launch.failure)
    if launch.timed_out:
        return _failed(Outcome.TIMEOUT, f"not done after {launch.wall_s:.0f} s", launch)
    output = CommandOutput(exit_code=launch.exit_code, stdout=launch.stdout, stderr=launch.stderr)
    try:
        reading = benchmark.read(command, output)
    except BenchmarkError as error:
        return _failed(_outcome_without_result(launch), f"{_ending(launch)}; {error.message}", launch)
    if reading.is_wrong:
        wrong = sum(m.wrong or 0 for m in reading.measurements)
        reason = reading.failed_check or f"{wrong} elements came out wrong"
        return _failed(Outcome.WRONG_RESULT, reason, launch, reading.measurements)
    if launch.exit_code != 0:
        return _failed(_outcome_without_result(launch), _ending(launch), launch, reading.measurements)
    return TrialResult(outcome=Outcome.OK, measurements=reading.measurements)


def _outcome_without_result(launch: LaunchResult) -> Outcome:
    said = f"{launch.stdout}\n{launch.stderr}"
    if launch.exit_code in (0, *_NOT_STARTED) or _NO_ALGORITHM.search(said):
        return Outcome.INVALID
    return Outcome.CRASHED


def _ending(launch: LaunchResult) -> str:
    code = launch.exit_code
    if code is None:
        ending = "it could not be ended"
    elif code < 0 or 128 < code <= 128 + signal.NSIG:
        # A shell or an MPI launcher reports a signal as 128 + its number.
        number = -code if code < 0 else code - 128
        known = number in {s.value for s in signal.Signals}
        ending = f"ended by {signal.Signals(number).name if known else f'signal {number}'}"
    else:
        ending = f"exit code {code}"
    if _OUT_OF_MEMORY.search(f"{launch.stdout}\n{launch.stderr}"):
        return f"CUDA out of memory ({ending})"
    return ending


def _failed(
    outcome: Outcome, reason: str, launch: LaunchResult, measurements: tuple[Measurement, ...] = ()
) -> TrialResult:
    head = [reason]
    if launch.survivors:
        head.append(f"still running after SIGKILL: {', '.join(map(str, launch.survivors))}")
    if launch.dropped_bytes:
        head.append(f"{launch.dropped_bytes} bytes of earlier output were dropped")
    said = [line.rstrip() for line in f"{launch.stdout}\n{launch.stderr}".splitlines() if line.strip()]
    lines = head + [line[:_DETAIL_LINE_CHARACTERS] for line in said[-(DETAIL_LINES - len(head)) :]]
    detail = _SECRET.sub(r"\1[removed]", "\n".join(lines))
    return TrialResult(outcome=outcome, measurements=measurements, detail=detail, wall_s=launch.wall_s)
