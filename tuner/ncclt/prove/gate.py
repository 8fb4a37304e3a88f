"""`ncclt upgrade --gate`: a command under today's and a new environment, in pairs."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from ncclt.core.budget import MIN_BLOCKS
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, format_bytes
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.plural import count_noun
from ncclt.core.verification import Side
from ncclt.errors import BenchmarkError, NotStartedError, UsageError
from ncclt.health.doctor.facts import LOG_VARIABLES, Facts
from ncclt.health.doctor.files import read_logs
from ncclt.health.doctor.known_issues import KnownIssue, find_upgrade_issues
from ncclt.health.doctor.settings import LOG_NAMES
from ncclt.launch.launcher import Launcher, LaunchResult
from ncclt.launch.prefixes import clean_text
from ncclt.launch.process.launcher import CANNOT_START
from ncclt.nccl.nccl_tests.result import NcclTest, NcclTestTiming
from ncclt.nccl.nccl_tests.text import parse_text
from ncclt.nccl.run_facts import logged_version
from ncclt.nccl.variables import VariableClass, classify
from ncclt.profile.record.ranks import read_step_times
from ncclt.prove.confidence import Interval, estimate_interval
from ncclt.prove.evidence import LAUNCHES_PER_BLOCK
from ncclt.prove.levels import INTERVAL_ERROR
from ncclt.prove.step_times import PROGRAM_HINT, VerifyRequest, describe_side_failure, launch_side
from ncclt.prove.verdict import format_change

SIDE_NAMES = {Side.BASE: "today", Side.TUNED: "new"}
"""Sides as users read them."""

_GROUP_BOUNDS = (64 << 10, 1 << 20, 16 << 20)
"""Largest sizes of the groups but the last. Small messages regress alone (NVIDIA/nccl#2094: up to 32 KiB;
NVIDIA/nccl#2355: 128 KiB to 4 MiB), and an average over all sizes would hide them."""

_LOADED = re.compile(r"(?i)\b(?:using|loaded)\b")
"""Of NCCL's lines about plugins: the others say what it searched for in vain."""

_TEST_FAILURE = re.compile(r"\bTest (?:(?:NCCL|CUDA) )?failure\b")
"""Of nccl-tests (src/common.h), also where a wrapper hides its exit code."""

_STEP = "training step"


class GateDecision(StrEnum):
    """Decision on the new side."""

    FASTER = "faster"
    NOT_SLOWER = "not slower"
    SLOWER = "slower"
    FAILED = "failed"
    UNDECIDED = "undecided"

    @property
    def is_regression(self) -> bool:
        """Return True if the new side must not be used."""
        return self in (GateDecision.SLOWER, GateDecision.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRequest:
    """Gate request.

    Attributes:
        sides: command and environment of both sides, and how they are launched.
        margin: largest slowdown that passes, as a share.
        expected: the NCCL version that a side has to load, where the user names it.
        cluster: where it runs; None = not named.
        stated: the user's words on what differs, where no log shows it; empty = the logs have to.
    """

    sides: VerifyRequest
    margin: float
    expected: Mapping[Side, NcclVersion] = field(default_factory=dict)
    cluster: Cluster | None = None
    stated: str = ""


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class ComparedCall:
    """One time that a launch gives.

    Attributes:
        name: the collective, or `training step`.
        size_bytes: as nccl-tests prints it; 0 for a step.
        dtype: likewise; empty for a step.
        in_place: the second half of a row.
    """

    name: str
    size_bytes: int = 0
    dtype: str = ""
    in_place: bool = False

    @property
    def group(self) -> tuple[str, int]:
        """Return the collective, and the number of the group of sizes."""
        return self.name, sum(self.size_bytes > bound for bound in _GROUP_BOUNDS)


Times = Mapping[ComparedCall, float]
"""Time of each call of one launch, µs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeGroup:
    """Comparison of one collective over a range of sizes, or of the training steps.

    Attributes:
        name: the collective with its sizes, or `training step`.
        decision: on this group and each of its sizes.
        ratio: time of the new side over today's: estimate and interval. The intervals of all groups and sizes hold
            together.
        pairs: of launches.
        worst: the size that takes the most time, where there are several.
        worst_ratio: of this size; of the group where there is one.
    """

    name: str
    decision: GateDecision
    ratio: Interval
    pairs: int
    worst: str = ""
    worst_ratio: Interval

    @property
    def worst_change(self) -> str:
        """Return the change at the worst size: `+9.8 %`."""
        return format_change(self.worst_ratio.estimate)

    @property
    def slowdown(self) -> str:
        """Return the change with its interval: `+9.8 % time (95 % CI +8.1 % to +11.2 %, 9 pairs)`."""
        return self._describe(self.ratio)

    @property
    def worst_slowdown(self) -> str:
        """Return the change at the worst size, likewise."""
        return self._describe(self.worst_ratio)

    def _describe(self, ratio: Interval) -> str:
        ends = f"{format_change(ratio.low)} to {format_change(ratio.high)}"
        return f"{format_change(ratio.estimate)} time (95 % CI {ends}, {count_noun(self.pairs, 'pair')})"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLaunch:
    """One timed launch.

    Attributes:
        side: which of the two was launched.
        order: counts the timed launches from 0.
        calls: number of times that it gave; 0 where it failed.
        failure: what went wrong, with the last lines of output; empty without a failure.
    """

    side: Side
    order: int
    calls: int
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """Result of a gate.

    Attributes:
        decision: on the new side; its worst group counts.
        reason: one sentence.
        seen: side -> property -> value, as NCCL logged it: version, driver, network, plugins, variables.
        issues: known issues of the new side.
        groups: one for each collective and range of sizes, or the training steps.
        launches: the timed ones, in order.
        failure: output of the launch that ended it; empty = none did.
        notes: caveats for the reader.
    """

    decision: GateDecision
    reason: str
    seen: Mapping[Side, Mapping[str, str]]
    issues: tuple[KnownIssue, ...] = ()
    groups: tuple[SizeGroup, ...] = ()
    launches: tuple[GateLaunch, ...] = ()
    failure: str = ""
    notes: tuple[str, ...] = ()

    @property
    def differences(self) -> tuple[tuple[str, str, str], ...]:
        """Return the properties that both sides logged and that differ: name, today, new."""
        today, new = self.seen[Side.BASE], self.seen[Side.TUNED]
        return tuple((name, today[name], new[name]) for name in today if new.get(name, today[name]) != today[name])

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "decision": self.decision.value,
            "is_regression": self.decision.is_regression,
            "reason": self.reason,
            "seen": {SIDE_NAMES[side]: dict(facts) for side, facts in self.seen.items()},
            "differences": [dict(zip(("what", "today", "new"), row, strict=True)) for row in self.differences],
            "known_issues": [issue.to_document() for issue in self.issues],
            "groups": [
                {
                    "name": group.name,
                    "decision": group.decision.value,
                    "ratio": group.ratio.estimate,
                    "interval": _list_ends(group.ratio),
                    "pairs": group.pairs,
                    "worst": group.worst or None,
                    "worst_ratio": group.worst_ratio.estimate,
                    "worst_interval": _list_ends(group.worst_ratio),
                }
                for group in self.groups
            ],
            "launches": [
                {
                    "side": SIDE_NAMES[launch.side],
                    "order": launch.order,
                    "calls": launch.calls,
                    "failure": launch.failure or None,
                }
                for launch in self.launches
            ],
            "failure": self.failure or None,
            "notes": list(self.notes),
        }


def _list_ends(ratio: Interval) -> list[float | None]:
    return [ratio.low, ratio.high if math.isfinite(ratio.high) else None]


def run_gate(
    request: GateRequest, launcher: Launcher, *, environ: Mapping[str, str], watch: Callable[[Side, int, str], None]
) -> GateResult:
    """Launch a command under both environments, first with NCCL's log, then timed in pairs, until it is decided.

    Args:
        environ: the environment that the launcher passes on.
        watch: called after every launch with its side, number and failure; the first two, with the log, have -1.

    Raises:
        UsageError: the command fails in today's environment, gives no times, or nothing differs between the sides.
        NotStartedError: a launch did not start.
        NodesLostError: the allocation is lost.
    """
    gate = _Gate(request, launcher, environ, watch)
    looks: dict[Side, _Look] = {}
    for side in Side:
        looks[side] = gate.look(side)
        if not (looks[side].failure or "NCCL" in looks[side].seen or request.stated or side in request.expected):
            raise _refuse_unseen(request, side)
    today, new = looks[Side.BASE], looks[Side.TUNED]
    seen = {side: look.seen for side, look in looks.items()}
    # Without a version of the new side, the cluster's would stand in for it.
    is_known = "NCCL" in new.seen or Side.TUNED in request.expected
    issues = _find_issues(today.facts, new.facts) if is_known else ()
    if today.failure:
        raise UsageError(
            f"the command fails {'on both sides' if new.failure else 'on the side of today'}: {today.failure}",
            hint="it has to print a table of nccl-tests or make steps of a torch optimizer; run it alone first",
        )
    if new.failure:
        failure = gate.look(Side.TUNED).failure
        return GateResult(
            decision=GateDecision.FAILED if failure else GateDecision.UNDECIDED,
            reason=_describe_failures([(Side.BASE, ""), (Side.TUNED, new.failure), (Side.TUNED, failure)]),
            seen=seen,
            issues=issues,
            failure=new.failure,
        )
    unread = (f"log of {SIDE_NAMES[side]}: {problem}" for side, look in looks.items() for problem in look.unread)
    notes = (*_check_sides(request, seen), *unread)
    comparison = _GateComparison(margin=request.margin)
    gate.time_pairs(comparison, seen)
    result = comparison.judge()
    return replace(result, seen=seen, issues=issues, notes=(*notes, *result.notes))


def _find_issues(today: Facts, new: Facts) -> tuple[KnownIssue, ...]:
    """Return the known issues of every NCCL that a process of the new side loaded."""
    processes = new.log.processes
    loaded = {process.version.value: process for process in processes if process.version}
    # The first process stands for the version of a log.
    views = [replace(new, log=replace(new.log, processes=(first, *processes))) for first in loaded.values()] or [new]
    return tuple(dict.fromkeys(issue for view in views for issue in find_upgrade_issues(today, view)))


@dataclass(slots=True, kw_only=True)
class _GateComparison:
    """Timed launches of both sides.

    Attributes:
        margin: largest slowdown that passes, as a share.
        launches: in order.
        pairs: log of the new side's time over today's for each call, of each pair of launches.
        groups: judged by the pairs.
        added, lost: calls of the new side alone, and of today's side alone.
        failure: of the launch that ended it; empty = none did.
    """

    margin: float
    launches: list[GateLaunch] = field(default_factory=list)
    pairs: list[Times] = field(default_factory=list)
    groups: tuple[SizeGroup, ...] = ()
    added: set[ComparedCall] = field(default_factory=set)
    lost: set[ComparedCall] = field(default_factory=set)
    failure: str = ""

    def add_pair(self, today: Times, new: Times) -> None:
        """Compare a pair of launches."""
        self.pairs.append({call: math.log(new[call] / today[call]) for call in sorted(today.keys() & new.keys())})
        self.added |= new.keys() - today.keys()
        self.lost |= today.keys() - new.keys()
        self.groups = judge_groups(self.pairs, margin=self.margin)

    @property
    def is_decided(self) -> bool:
        """Return True if no more pairs are needed, or none can decide."""
        if not self.groups:
            return True
        decision = decide_gate(self.groups)
        is_open = decision is not GateDecision.SLOWER and bool(_name_suspects(self.groups, margin=self.margin))
        enough = len(self.pairs) >= MIN_BLOCKS * LAUNCHES_PER_BLOCK
        return enough and not (is_open or decision is GateDecision.UNDECIDED)

    def judge(self) -> GateResult:
        """Return decision, reason and notes."""
        decision, notes = decide_gate(self.groups), []
        if self.added:
            notes.append(f"not compared, measured on the new side only: {_name_calls(self.added)}")
        if suspects := _name_suspects(self.groups, margin=self.margin):
            notes.append(f"slower than the margin, but not with 95 % confidence: {', '.join(suspects)}")
        if self.failure:
            # A failure of the new side speaks against it only where it fails again.
            is_failed = self.launches[-1].side is Side.TUNED and bool(self.launches[-1].failure)
            decision = GateDecision.FAILED if is_failed else GateDecision.UNDECIDED
            logged = [(side, "") for side in Side]
            reason = _describe_failures([*logged, *((launch.side, launch.failure) for launch in self.launches)])
        elif self.lost and decision is not GateDecision.SLOWER:
            decision = GateDecision.UNDECIDED
            reason = f"the new side did not measure {_name_calls(self.lost)}, which today's side did"
        else:
            reason = _describe_decision(decision, self.groups, margin=self.margin)
            if self.lost:
                notes.append(f"not compared, measured on today's side only: {_name_calls(self.lost)}")
        return GateResult(
            decision=decision,
            reason=reason,
            seen={},
            groups=self.groups,
            launches=tuple(self.launches),
            failure=self.failure,
            notes=tuple(notes),
        )


def _name_suspects(groups: Iterable[SizeGroup], *, margin: float) -> list[str]:
    """Return the worst size of each group that passes, where it seems slower than the margin."""
    return [
        f"{group.name}: {group.worst} {group.worst_change}"
        for group in groups
        if group.worst and group.worst_ratio.estimate > 1 + margin and group.decision is not GateDecision.SLOWER
    ]


def _name_calls(calls: Iterable[ComparedCall]) -> str:
    return ", ".join(dict.fromkeys(f"{call.name} {format_bytes(call.size_bytes)}" for call in sorted(calls)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A launch with NCCL's log: what was seen, why it failed (empty = it did not), and what of the log was not read."""

    facts: Facts
    seen: Mapping[str, str]
    failure: str
    unread: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Gate:
    """The launches of a gate; for the attributes see `run_gate`."""

    request: GateRequest
    launcher: Launcher
    environ: Mapping[str, str]
    watch: Callable[[Side, int, str], None]

    def look(self, side: Side) -> _Look:
        """Launch a side with NCCL's log."""
        request = self.request

        def add(folder: Path) -> Mapping[str, str]:
            variables = {name: LOG_VARIABLES[name] for name in LOG_NAMES}
            return {**variables, "NCCL_DEBUG_FILE": f"{folder}/nccl/%h.%p.log"}

        def read(folder: Path, result: LaunchResult) -> tuple[Facts, str, str, tuple[str, ...]]:
            # Where the file cannot be written, NCCL logs to standard output (debug.cc).
            (folder / "nccl" / "output").write_text(clean_text(result.stdout), encoding="utf-8", errors="replace")
            log, unread = read_logs(sorted((folder / "nccl").iterdir()), ignored=LOG_NAMES)
            _times, version, missing = _read_times(request, folder, result)
            printed = NcclVersion.parse(version) if version else request.expected.get(side)
            return Facts(log=log, cluster=request.cluster, version=printed), version, missing, unread

        result, (facts, version, missing, unread) = launch_side(
            request.sides, side, self.launcher, environ=self.environ, read=read, add=add
        )
        failure = self._describe_end(side, result, missing)
        self.watch(side, -1, failure)
        return _Look(facts=facts, seen=_describe_facts(facts, version), failure=failure, unread=unread)

    def time_pairs(self, comparison: _GateComparison, seen: Mapping[Side, Mapping[str, str]]) -> None:
        """Launch timed pairs until the sizes are decided, a launch fails, or the last pair is done."""
        open_pair: dict[Side, Times] = {}
        for order, side in enumerate(self.request.sides.order):
            times, version, comparison.failure = self._time(comparison, side, order)
            if version and version not in seen[side].get("NCCL", version).split(" and "):
                raise UsageError(
                    f"{SIDE_NAMES[side]} loaded NCCL {seen[side]['NCCL']} at first and {version} later",
                    hint="both sides must be what they are during the whole comparison",
                )
            if comparison.failure:
                if side is Side.TUNED:
                    self._time(comparison, side, order + 1)
                return
            open_pair[side] = times
            if len(open_pair) == len(Side):
                comparison.add_pair(open_pair[Side.BASE], open_pair[Side.TUNED])
                open_pair = {}
                if comparison.is_decided:
                    return

    def _time(self, comparison: _GateComparison, side: Side, order: int) -> tuple[Times, str, str]:
        """Launch a side without a log; return its times, the NCCL version that it printed, and why it failed."""
        result, (times, version, missing) = launch_side(
            self.request.sides,
            side,
            self.launcher,
            environ=self.environ,
            read=lambda folder, result: _read_times(self.request, folder, result),
            add=lambda _folder: {"NCCL_DEBUG": "VERSION"},
        )
        failure = self._describe_end(side, result, missing)
        self.watch(side, order, failure)
        comparison.launches.append(
            GateLaunch(side=side, order=order, calls=0 if failure else len(times), failure=failure)
        )
        return times, version, failure

    def _describe_end(self, side: Side, result: LaunchResult, missing: str) -> str:
        """Describe the failure of a launch; empty = none.

        Raises:
            NotStartedError: it did not start for a reason that says nothing about the side.
        """
        failure = describe_side_failure(self.request.sides, side, result, missing=missing, environ=self.environ)
        if not result.not_started:
            return failure
        # Today's side has started, so the new one is at fault.
        if side is Side.TUNED and result.exit_code in CANNOT_START:
            return f"the command does not start: {failure}"
        raise NotStartedError(f"the command does not start: {failure}", hint=PROGRAM_HINT)


def _read_times(request: GateRequest, folder: Path, result: LaunchResult) -> tuple[Times, str, str]:
    """Return the times of a launch, the NCCL version in its output, and what is missing or wrong."""
    text = clean_text(result.stdout)
    version = next(filter(None, map(logged_version, text.splitlines())), "")
    try:
        tests = parse_text(text, errors=result.stderr)
    except BenchmarkError:
        steps = read_step_times(folder, steps=request.sides.how.steps)
        if steps.failure:
            _require_whole(result)
            return {}, version, f"neither a table of nccl-tests nor step times: {steps.failure}"
        return {ComparedCall(name=_STEP): statistics.median(steps.step_us)}, version, ""
    _require_whole(result)
    version = version or next((str(NcclVersion.parse(test.nccl)) for test in tests if test.nccl), "")
    problem = _find_problem(tests, f"{text}\n{result.stderr}")
    return ({}, version, problem) if problem else (_read_tables(tests), version, "")


def _require_whole(result: LaunchResult) -> None:
    """Refuse to judge a table whose begin may be lost.

    Raises:
        UsageError: a launch that ended well printed more than is kept.
    """
    if result.dropped_bytes and result.exit_code == 0:
        raise UsageError(
            f"the command printed more than is kept: its first {result.dropped_bytes:,} bytes are lost",
            hint="let it print less; the tables of nccl-tests have to be read whole",
        )


def _find_problem(tests: Sequence[NcclTest], output: str) -> str:
    """Return the fault of a table of nccl-tests that fails its side: wrong values, or rows without times."""
    wrong: dict[str, None] = {}
    untimed: dict[str, None] = {}
    for call, half in itertools.chain.from_iterable(map(_halves, tests)):
        words = f"{call.name} {format_bytes(call.size_bytes)}"
        if half.wrong:
            wrong[words] = None
        if not math.isfinite(half.time_us) or (half.time_us <= 0 < call.size_bytes):
            untimed[words] = None
    if wrong:
        return f"wrong results: {', '.join(wrong)}"
    if count := sum(test.out_of_bounds or 0 for test in tests):
        return f"wrong results: {count_noun(count, 'value')} out of bounds"
    if failed := next((line.strip() for line in output.splitlines() if _TEST_FAILURE.search(line)), ""):
        return failed
    if untimed:
        return f"no finite time: {', '.join(untimed)}"
    return ""


def _read_tables(tests: Sequence[NcclTest]) -> Times:
    """Return the time of each row of the tables of nccl-tests; of repeated rows the geometric mean."""
    logs: dict[ComparedCall, list[float]] = {}
    for call, half in itertools.chain.from_iterable(map(_halves, tests)):
        if half.time_us > 0:  # rows of size 0 may take none
            logs.setdefault(call, []).append(math.log(half.time_us))
    return {call: math.exp(statistics.fmean(values)) for call, values in logs.items()}


def _halves(test: NcclTest) -> Iterator[tuple[ComparedCall, NcclTestTiming]]:
    """Return each half of each row that was measured; of one that was left out all words are `nan` or `N/A`."""
    name = str(test.collective) if isinstance(test.collective, Collective) else test.program or "nccl-tests"
    for row in test.rows:
        for is_in_place, half in enumerate((row.out_of_place, row.in_place)):
            if half and not (half.wrong is None and math.isnan(half.time_us)):
                yield (
                    ComparedCall(name=name, size_bytes=row.size_bytes, dtype=row.dtype, in_place=bool(is_in_place)),
                    half,
                )


def _describe_facts(facts: Facts, version: str) -> dict[str, str]:
    """Return the properties in the log of a side, by name; one that the log lacks is left out."""
    processes = facts.log.processes
    versions = {str(NcclVersion.parse(process.version.value)) for process in processes if process.version}
    variables: dict[str, set[str]] = {}
    for process in processes:
        for name, variable in process.variables.items():
            if classify(name)[0] is not VariableClass.DEBUG:
                variables.setdefault(name, set()).add(variable.value)
    properties = {
        "NCCL": versions or {version},
        "CUDA driver": {_cuda_version(process.driver) for process in processes if process.driver},
        "network": {process.network.value for process in processes if process.network},
        "plugins": {line for process in processes for line in process.plugins if _LOADED.search(line)},
        **dict(sorted(variables.items())),
    }
    return {name: " and ".join(sorted(values)) for name, values in properties.items() if any(values)}


def _cuda_version(number: str) -> str:
    """Return the version of `cudaDriverVersion`: `12.8` for 12080."""
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}"


def _check_sides(request: GateRequest, seen: Mapping[Side, Mapping[str, str]]) -> tuple[str, ...]:
    """Refuse sides that are not what the user says, or do not differ; return notes on what was not seen.

    Raises:
        UsageError: the sides cannot be compared.
    """
    notes = [note for side, facts in seen.items() for note in _check_version(request, side, facts.get("NCCL", ""))]
    today, new, cluster = seen[Side.BASE], seen[Side.TUNED], request.cluster
    version = today.get("NCCL", "")
    if version and cluster and Side.BASE not in request.expected and version != str(cluster.version):
        notes.append(f"{cluster.name} is described with NCCL {cluster.version}, and today loads {version}")
    for side, others in ((Side.BASE, new), (Side.TUNED, today)):
        if single := [name for name in seen[side] if name != "NCCL" and name not in others]:
            notes.append(f"logged on one side alone ({SIDE_NAMES[side]}): {', '.join(single)}")
    missing = [SIDE_NAMES[side] for side, facts in seen.items() if "NCCL" not in facts]
    if request.stated:
        notes += [f"NCCL version: not seen ({' and '.join(missing)})"] if missing else []
        return (*notes, f"difference as stated, not seen: {request.stated}")
    if version == new["NCCL"]:
        raise UsageError(
            f"the NCCL version does not differ: both sides loaded NCCL {version}",
            hint="was the new library loaded? check its path, and that LD_PRELOAD reaches the ranks; to compare "
            "anything else, such as a variable, driver or firmware, name it with --differs",
        )
    return tuple(notes)


def _refuse_unseen(request: GateRequest, side: Side) -> UsageError:
    """Return the error on a side whose NCCL was not seen, which names the variables that differ."""
    today, new = dict(request.sides.base_env), dict(request.sides.tuned_env)
    names = [name for name in dict.fromkeys((*today, *new)) if today.get(name) != new.get(name)]
    differing = f", here {', '.join(names)}," if names else ""
    return UsageError(
        f"NCCL version: not seen on the side {SIDE_NAMES[side]}",
        hint="NCCL's log has to reach the folder of --dir or standard output; for a job without NCCL (gloo), or where "
        f"it cannot be seen, state what differs{differing} with --differs TEXT",
    )


def _check_version(request: GateRequest, side: Side, version: str) -> list[str]:
    """Refuse a side whose NCCL is not the expected one, or not one alone; return notes on it."""
    name, expected = SIDE_NAMES[side], request.expected.get(side)
    if expected and version != str(expected):
        raise UsageError(
            f"{name} loaded NCCL {version}, not {expected}{' alone' if str(expected) in version.split(' and ') else ''}"
            if version
            else f"{name}: NCCL {expected} was not seen",
            hint="PyTorch brings its own library: put the other one into LD_PRELOAD on all nodes"
            if version
            else f"NCCL's log has to reach the folder of --dir or standard output; or name no version for {name}",
        )
    if " and " not in version:
        return []
    if not request.stated:
        raise UsageError(
            f"{name}: processes loaded NCCL {version}",
            hint="the variables have to reach all ranks; for a job that needs both, use --differs",
        )
    return [f"{name}: processes loaded NCCL {version}"]


def judge_groups(pairs: Sequence[Mapping[ComparedCall, float]], *, margin: float) -> tuple[SizeGroup, ...]:
    """Judge each collective and range of sizes; may be called after each pair.

    Args:
        pairs: log of the new side's time over today's for each call, of each pair of launches.
        margin: largest slowdown that passes, as a share.

    Returns:
        The groups in order of collective and size. All intervals hold together at `INTERVAL_ERROR`, whatever the number
        of looks: each group gets an equal part of the error, and all single sizes share one more.
    """
    calls: dict[tuple[str, int], list[ComparedCall]] = {}
    for call in sorted({call for pair in pairs for call in pair}):
        calls.setdefault(call.group, []).append(call)
    sizes = sum(count for members in calls.values() if (count := len({call.size_bytes for call in members})) > 1)
    error = INTERVAL_ERROR / max(len(calls) + bool(sizes), 1)
    return tuple(
        _judge_group(pairs, members, margin=margin, error=error, size_error=error / max(sizes, 1))
        for members in calls.values()
    )


def _judge_group(
    pairs: Sequence[Mapping[ComparedCall, float]],
    calls: Sequence[ComparedCall],
    *,
    margin: float,
    error: float,
    size_error: float,
) -> SizeGroup:
    def compare(members: Sequence[ComparedCall], error: float) -> Interval:
        logs = ([pair[call] for call in members if call in pair] for pair in pairs)
        return estimate_interval([statistics.fmean(shared) for shared in logs if shared], error=error)

    ratio = compare(calls, error)
    by_size: dict[int, list[ComparedCall]] = {}
    for call in calls:
        by_size.setdefault(call.size_bytes, []).append(call)
    # A group of one size is that size.
    sizes = {size: compare(members, size_error) if len(by_size) > 1 else ratio for size, members in by_size.items()}
    worst = max(sizes, key=lambda size: (sizes[size].low > 1 + margin, sizes[size].estimate))
    if ratio.low > 1 + margin or sizes[worst].low > 1 + margin:
        decision = GateDecision.SLOWER
    elif ratio.high > 1 + margin:
        decision = GateDecision.UNDECIDED
    else:
        decision = GateDecision.FASTER if ratio.high < 1 else GateDecision.NOT_SLOWER
    return SizeGroup(
        name=_name_group(*calls[0].group),
        decision=decision,
        ratio=ratio,
        pairs=sum(any(call in pair for call in calls) for pair in pairs),
        worst=format_bytes(worst) if len(sizes) > 1 else "",
        worst_ratio=sizes[worst],
    )


def _name_group(name: str, number: int) -> str:
    if name == _STEP:
        return name
    if number == len(_GROUP_BOUNDS):
        return f"{name} above {format_bytes(_GROUP_BOUNDS[-1])}"
    below = format_bytes(_GROUP_BOUNDS[number - 1]) if number else "up"
    return f"{name} {below} to {format_bytes(_GROUP_BOUNDS[number])}"


def decide_gate(groups: Sequence[SizeGroup]) -> GateDecision:
    """Return the decision on all groups: that on the worst one."""
    decisions = {group.decision for group in groups}
    for decision in (GateDecision.SLOWER, GateDecision.UNDECIDED, GateDecision.NOT_SLOWER):
        if decision in decisions:
            return decision
    return GateDecision.FASTER if decisions else GateDecision.UNDECIDED


def _describe_failures(ends: Sequence[tuple[Side, str]]) -> str:
    """Return the sentence on the launches that failed, from the side and failure of each launch."""
    counts = {}
    for side in Side:
        failures = [failure for launched, failure in ends if launched is side]
        counts[side] = f"{sum(map(bool, failures))} of {len(failures)}"
    first = next(failure for _, failure in ends if failure).splitlines()[0]
    return f"failed in {counts[Side.TUNED]} launches of the new side, {counts[Side.BASE]} of today's: {first}"


def _describe_decision(decision: GateDecision, groups: Sequence[SizeGroup], *, margin: float) -> str:
    """Return the sentence on the group that decides."""
    worst = max((group for group in groups if group.decision is decision), key=lambda group: group.ratio.estimate)
    change = f"{worst.name} takes {worst.slowdown}"
    if decision is GateDecision.SLOWER and worst.ratio.low <= 1 + margin:
        change = f"{worst.name}: {worst.worst} takes {worst.worst_slowdown}"
    limit = f"{margin * 100:.3g} %"
    if decision is GateDecision.SLOWER:
        return f"{change}, more than the {limit} margin"
    if decision is GateDecision.UNDECIDED:
        return f"{change}, which does not decide about the {limit} margin"
    if decision is GateDecision.FASTER:
        return change
    return f"{change}, at most the {limit} margin"
