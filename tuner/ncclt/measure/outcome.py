"""The end of a launch: an outcome, a sentence, and the last lines of its output.

The first line of the words names the cause and is the same whenever the cause is the same: no process id, address or
time of day stands in it. Equal failures in a row are recognised by it.
"""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.errors import BenchmarkError, HostLostError, StudyStoppedError
from ncclt.launch.kubernetes.driver import TAKEN
from ncclt.launch.launcher import LaunchResult
from ncclt.launch.ranks import UNEXPECTED, find_unfit_reason
from ncclt.measure.benchmarks.benchmark import Benchmark, BenchmarkCommand, CommandOutput
from ncclt.measure.redact import cut_begin, without_secrets

DETAIL_LINES = 20
"""Most lines of output kept of a failed trial."""

_LINE_CHARACTERS = 400
_SEARCHED_CHARACTERS = 1 << 20  # of the end of each output: errors come late, and noise can be endless

_HOST_LOST = "a node, or the connection to it, was lost"
_PREEMPTED = "the scheduler took the nodes"
_NO_ALGORITHM = "NCCL has no such algorithm and protocol for this collective"

# Message -> meaning. Messages that name the cause precede those that follow from it. Sources: NCCL enqueue.cc
# (ncclGetAlgoInfo), Linux mm/oom_kill.c, slurmstepd, ORTE and PRRTE, Hydra, OpenSSH clientloop.c, the driver's Xid log.
_CAUSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i)no algorithm/protocol"), _NO_ALGORITHM),
    (
        re.compile(r"(?i)\boom[-_ ]?kill|out[-_ ]of[-_ ]memory handler|Out of memory: Killed process"),
        "a node ran out of memory",
    ),
    (re.compile(r"(?i)(?:cuda|nccl|gpu).{0,200}\bout of memory\b|CUDA_ERROR_OUT_OF_MEMORY"), "CUDA out of memory"),
    (
        re.compile(
            r"(?i)\bnode[ _]fail|lost communication with a remote daemon|lost connection to|daemon has unexpectedly"
            r"|unexpectedly closed connection|closed by remote host|client_loop: send disconnect"
            r"|ssh: connect to host .* port \d+: |Timeout, server .* (?:not responding|no route to host)"
            r"|it cannot be reached, or the connection was lost"
            rf"|ncclt: kubernetes: pod \S+: (?:{'|'.join(TAKEN)})\b"
        ),
        _HOST_LOST,
    ),
    (re.compile(r"(?i)uncorrectable ecc|fallen off the bus|NVRM: Xid"), "a GPU failed"),
    (re.compile(r"DUE TO (?:PREEMPTION|JOB REQUEUE)"), _PREEMPTED),
    # Of the step perhaps: that the job's time is over is asked of Slurm.
    (re.compile(r"DUE TO TIME LIMIT"), "the scheduler ended the launch"),
)

_FOREIGN_HINT = (
    "a TaskProlog of slurm.conf, a profile script of the nodes or the image sets it: let that leave launches of ncclt "
    "alone (all of them have NCCLT_LAUNCH)"
)

# Parts of a line that differ although the cause is the same.
_PASSING = (
    (re.compile(r"\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[\d.,]*\]?\s*"), ""),
    (re.compile(r"\S+?:\d+:\d+ \[-?\d+\] (?=\S+:\d+ |NCCL )"), ""),
    (re.compile(r"\S+: (?=Test (?:NCCL|CUDA|timeout))"), ""),
    (re.compile(r"0x[0-9a-fA-F]+"), "0x…"),
    (re.compile(r"(?i)\b(pid|process|rank|task)(s?)([ =:#]+)\d+"), r"\1\2\3N"),
)


def judge(benchmark: Benchmark, command: BenchmarkCommand, launch: LaunchResult, *, limit_s: float) -> TrialResult:
    """Return the outcome of one command; wrong data takes precedence over a crash, since it is the worse of the two.

    Raises:
        StudyStoppedError: the launch says nothing about its setting, and neither would the next one: its nodes were
            lost (NodesLostError), nothing of it started (NotStartedError), or its ranks had another environment than
            planned.
    """
    if launch.not_started:
        require_place(launch)
    result = _judged(benchmark, command, launch, limit_s=limit_s)
    if result.outcome not in (Outcome.OK, Outcome.WRONG_RESULT):  # data that came out wrong did so before that
        require_place(launch)
    return result


def require_place(launch: LaunchResult) -> None:
    """Refuse to judge a launch that failed because of where it ran.

    Raises:
        StudyStoppedError: see `judge`.
    """
    if why := find_unfit_reason(f"{launch.stderr}\n{launch.stdout}"):
        hint = _FOREIGN_HINT if why.startswith(UNEXPECTED) else "name the hosts so that all of them know these names"
        raise StudyStoppedError(f"invalid: {without_secrets(why)}", hint=hint)
    cause, evidence = _cause(launch)
    replace(launch, lost=launch.lost or (cause if cause == _PREEMPTED else "")).require_nodes()
    if cause == _HOST_LOST:
        raise HostLostError(
            f"{cause}: {without_secrets(evidence)}",
            hint="run the same command again when all nodes are back; the interrupted launch does not count",
        )
    replace(launch, not_started=without_secrets(launch.not_started)).require_start()


def _judged(benchmark: Benchmark, command: BenchmarkCommand, launch: LaunchResult, *, limit_s: float) -> TrialResult:
    cause, evidence = _cause(launch)
    if launch.timed_out:
        late = f"not done within {limit_s:.0f} s"
        return _failed(Outcome.TIMEOUT, [f"{cause}; {late}" if cause else late, evidence], launch)
    output = CommandOutput(exit_code=launch.exit_code, stdout=launch.stdout, stderr=launch.stderr)
    ending = f"{cause} ({_ending(launch)})" if cause else _ending(launch)
    outcome = Outcome.INVALID if launch.exit_code == 0 or cause == _NO_ALGORITHM else Outcome.CRASHED
    try:
        reading = benchmark.read(command, output)
    except BenchmarkError as error:
        lasting = error.message
        for pattern, replacement in _PASSING:
            lasting = pattern.sub(replacement, lasting)
        head = [ending, error.message] if cause else [f"{ending}: {lasting}"]
        return _failed(outcome, [*head, evidence], launch)
    if reading.is_wrong:
        wrong = sum(m.wrong or 0 for m in reading.measurements)
        head = ["data came out wrong", reading.failed_check or f"{wrong} elements came out wrong"]
        return _failed(Outcome.WRONG_RESULT, head, launch, reading.measurements)
    if launch.exit_code != 0:
        return _failed(outcome, [ending, evidence], launch, reading.measurements)
    return TrialResult(outcome=Outcome.OK, measurements=reading.measurements, wall_s=launch.wall_s)


def _cause(launch: LaunchResult) -> tuple[str, str]:
    """Return the cause that the output names and the line that names it, both empty where it names none."""
    elsewhere = "\n".join(launch.left_elsewhere)
    output = f"{launch.stdout[-_SEARCHED_CHARACTERS:]}\n{launch.stderr[-_SEARCHED_CHARACTERS:]}\n{elsewhere}"
    for pattern, meaning in _CAUSES:
        if match := pattern.search(output):
            start = output.rfind("\n", 0, match.start()) + 1
            end = output.find("\n", match.end())
            return meaning, output[start : end if end >= 0 else None].strip()
    return "", ""


def _ending(launch: LaunchResult) -> str:
    code = launch.exit_code
    if code is None:
        return "it could not be ended"
    # A shell or an MPI launcher reports a signal as 128 + its number.
    number = -code if code < 0 else code - 128 if 128 < code <= 128 + signal.NSIG else 0
    if not number:
        return f"exit code {code}"
    ending = f"ended by {signal_name(number)}"
    # Nobody but the kernel sends this to a rank by itself.
    return f"{ending}, often because the host ran out of memory" if number == signal.SIGKILL else ending


def signal_name(number: int) -> str:
    """Return `SIGKILL`, or `signal 99` for a number without a name."""
    is_signal = number in {s.value for s in signal.Signals}
    return signal.Signals(number).name if is_signal else f"signal {number}"


def _failed(
    outcome: Outcome, head: list[str], launch: LaunchResult, measurements: tuple[Measurement, ...] = ()
) -> TrialResult:
    head = [line for line in head if line]
    if launch.survivors:
        head.append(f"still running after SIGKILL: {', '.join(map(str, launch.survivors))}")
    head += [f"perhaps still running elsewhere: {process}" for process in launch.left_elsewhere]
    if launch.dropped_bytes:
        head.append(f"{launch.dropped_bytes} bytes of earlier output were dropped")
    last_lines: list[str] = []
    for text in (launch.stdout, launch.stderr):
        # Before lines are cut to what is shown: half a key is recognised by nothing.
        ends = [line[: 4 * _LINE_CHARACTERS] for line in cut_begin(text, most=_SEARCHED_CHARACTERS).splitlines()]
        last_lines += [line.rstrip() for line in without_secrets("\n".join(ends)).splitlines() if line.strip()]
    head = without_secrets("\n".join(head)).splitlines()
    lines = [line[:_LINE_CHARACTERS] for line in [*head, *last_lines[-(DETAIL_LINES - len(head)) :]]]
    return TrialResult(outcome=outcome, measurements=measurements, detail="\n".join(lines), wall_s=launch.wall_s)
