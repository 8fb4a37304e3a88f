"""The application service of `ncclt upgrade --gate`: a command under today's and a new environment, in pairs."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.files import read_logs
from ncclt.health.doctor.known_issues import KnownIssue, find_upgrade_issues
from ncclt.health.doctor.settings import LOG_NAMES, LOG_VARIABLES
from ncclt.launch.launcher import Launcher, LaunchResult
from ncclt.launch.prefixes import clean_text
from ncclt.measure.redact import without_secrets
from ncclt.nccl.nccl_tests.result import NcclTest, NcclTestRow
from ncclt.nccl.nccl_tests.text import parse_text
from ncclt.nccl.run_facts import logged_version
from ncclt.nccl.variables import VariableClass, classify
from ncclt.profile.record.ranks import read_step_times
from ncclt.prove.confidence import Interval, estimate_interval
from ncclt.prove.evidence import LAUNCHES_PER_BLOCK
from ncclt.prove.step_times import VerifyRequest, describe_failure, launch_side
from ncclt.prove.verdict import INTERVAL_ERROR, format_change

SIDE_NAMES = {Side.BASE: "today", Side.TUNED: "new"}
"""Sides as users read them."""

_GROUP_BOUNDS = (64 << 10, 1 << 20, 16 << 20)
"""Largest sizes of the groups but the last. Small messages regress alone (NVIDIA/nccl#2094: up to 32 KiB;
NVIDIA/nccl#2355: 128 KiB to 4 MiB), and an average over all sizes would hide them."""

_LOADED = re.compile(r"(?i)\b(?:using|loaded)\b")
"""Of NCCL's lines about plugins: the others say what it searched for in vain."""

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
        decision: on this group alone.
        ratio: time of the new side over today's: estimate and interval. The intervals of all groups hold together.
        pairs: of launches.
        worst: the size with the largest ratio, where there are several.
        worst_ratio: its median ratio.
    """

    name: str
    decision: GateDecision
    ratio: Interval
    pairs: int
    worst: str = ""
    worst_ratio: float = 1.0

    @property
    def worst_change(self) -> str:
        """Return the change at the worst size: `+9.8 %`."""
        return format_change(self.worst_ratio)

    @property
    def slowdown(self) -> str:
        """Return the change with its interval: `+9.8 % time (95 % CI +8.1 % to +11.2 %, 9 pairs)`."""
        ends = f"{format_change(self.ratio.low)} to {format_change(self.ratio.high)}"
        return f"{format_change(self.ratio.estimate)} time (95 % CI {ends}, {count_noun(self.pairs, 'pair')})"


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
        notes: what the reader must know.
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
        """Return the differences between the logs of both sides: property, today, new; `-` where a side lacks it."""
        return find_differences(self.seen)

    def to_document(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "decision": self.decision.value,
            "is_regression": self.decision.is_regression,
            "reason": self.reason,
            "seen": {SIDE_NAMES[side]: dict(found) for side, found in self.seen.items()},
            "differences": [dict(zip(("what", "today", "new"), row, strict=True)) for row in self.differences],
            "known_issues": [issue.to_document() for issue in self.issues],
            "groups": [
                {
                    "name": group.name,
                    "decision": group.decision.value,
                    "ratio": group.ratio.estimate,
                    "interval": [group.ratio.low, group.ratio.high if math.isfinite(group.ratio.high) else None],
                    "pairs": group.pairs,
                    "worst": group.worst or None,
                    "worst_ratio": group.worst_ratio,
                }
                for group in self.groups
            ],
            "launches": [
                {"side": SIDE_NAMES[one.side], "order": one.order, "calls": one.calls, "failure": one.failure or None}
                for one in self.launches
            ],
            "failure": self.failure or None,
            "notes": list(self.notes),
        }


def find_differences(seen: Mapping[Side, Mapping[str, str]]) -> tuple[tuple[str, str, str], ...]:
    """Return the properties of two sides that differ: name, today, new; `-` where a side lacks it."""
    today, new = seen[Side.BASE], seen[Side.TUNED]
    names = dict.fromkeys((*today, *new))
    rows = ((name, today.get(name, "-"), new.get(name, "-")) for name in names)
    return tuple(row for row in rows if row[1] != row[2])


def run_gate(
    request: GateRequest,
    launcher: Launcher,
    *,
    environ: Mapping[str, str],
    watch: Callable[[Side, int, str], None],
) -> GateResult:
    """Launch a command under both environments, first with NCCL's log, then timed in pairs, until it is decided.

    Args:
        request: what to compare.
        launcher: where it runs.
        environ: the environment that the launcher passes on.
        watch: called after every launch with its side, number and failure; the first two, with the log, have -1.

    Raises:
        UsageError: the command fails in today's environment, gives no times, or nothing differs between the sides.
        NotStartedError: a launch did not start.
        NodesLostError: the allocation is lost.
    """
    looks: dict[Side, _Look] = {}
    for side in Side:
        looks[side] = _look(request, side, launcher, environ)
        watch(side, -1, looks[side].failure)
    seen = {side: look.seen for side, look in looks.items()}
    # Without a version of the new side, the cluster's would stand in for it.
    is_known = "NCCL" in seen[Side.TUNED] or Side.TUNED in request.expected
    issues = find_upgrade_issues(looks[Side.BASE].facts, looks[Side.TUNED].facts) if is_known else ()
    if failure := looks[Side.BASE].failure:
        raise UsageError(
            f"the command fails {'on both sides' if looks[Side.TUNED].failure else 'on the side of today'}: {failure}",
            hint="it has to print a table of nccl-tests or make steps of a torch optimizer; run it alone first",
        )
    if failure := looks[Side.TUNED].failure:
        return GateResult(
            decision=GateDecision.FAILED,
            reason=_describe_failure_of_new(failure),
            seen=seen,
            issues=issues,
            failure=failure,
        )
    unread = (f"log of {SIDE_NAMES[side]}: {problem}" for side, look in looks.items() for problem in look.unread)
    notes = (*_check_sides(request, seen), *unread)
    return _compare(request, launcher, environ=environ, watch=watch, seen=seen, issues=issues, notes=notes)


def _compare(
    request: GateRequest,
    launcher: Launcher,
    *,
    environ: Mapping[str, str],
    watch: Callable[[Side, int, str], None],
    seen: Mapping[Side, Mapping[str, str]],
    issues: tuple[KnownIssue, ...],
    notes: tuple[str, ...],
) -> GateResult:
    """Launch timed pairs until the sizes are decided, a launch fails, or the last pair is done."""
    launches: list[GateLaunch] = []
    pairs: list[Mapping[ComparedCall, float]] = []
    open_pair: dict[Side, Times] = {}
    groups: tuple[SizeGroup, ...] = ()
    alone: set[ComparedCall] = set()
    failure = ""
    for order, side in enumerate(request.sides.order):
        times, version, failure = _time_side(request, side, launcher, environ)
        if version and version not in seen[side].get("NCCL", version).split(" and "):
            raise UsageError(
                f"{SIDE_NAMES[side]} loaded NCCL {seen[side]['NCCL']} at first and {version} later",
                hint="both sides must be what they are during the whole comparison",
            )
        if not failure and len(open_pair) == 1 and not times.keys() & next(iter(open_pair.values())).keys():
            failure = "no size or collective in common with the other side"
        watch(side, order, failure)
        launches.append(GateLaunch(side=side, order=order, calls=0 if failure else len(times), failure=failure))
        if failure:
            break
        open_pair[side] = times
        if len(open_pair) < len(Side):
            continue
        today, new = open_pair[Side.BASE], open_pair[Side.TUNED]
        pairs.append({call: math.log(new[call] / today[call]) for call in sorted(today.keys() & new.keys())})
        alone |= today.keys() ^ new.keys()
        open_pair = {}
        groups = judge_groups(pairs, margin=request.margin)
        if len(pairs) >= MIN_BLOCKS * LAUNCHES_PER_BLOCK and decide_gate(groups) is not GateDecision.UNDECIDED:
            break
    if alone:
        sizes = ", ".join(dict.fromkeys(f"{call.name} {format_bytes(call.size_bytes)}" for call in sorted(alone)))
        notes = (*notes, f"not compared, measured on one side only: {sizes}")
    decision = decide_gate(groups)
    if failure and launches[-1].side is Side.TUNED:
        decision, reason = GateDecision.FAILED, _describe_failure_of_new(failure)
    elif failure:
        decision = GateDecision.UNDECIDED
        reason = f"the side of today failed after it had succeeded: {failure.splitlines()[0]}"
    else:
        reason = _describe_decision(decision, groups, margin=request.margin)
    return GateResult(
        decision=decision,
        reason=reason,
        seen=seen,
        issues=issues,
        groups=groups,
        launches=tuple(launches),
        failure=failure,
        notes=notes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A launch with NCCL's log: what was seen, why it failed (empty = it did not), and what of the log was not read."""

    facts: Facts
    seen: Mapping[str, str]
    failure: str
    unread: tuple[str, ...]


def _look(request: GateRequest, side: Side, launcher: Launcher, environ: Mapping[str, str]) -> _Look:
    def add(folder: Path) -> Mapping[str, str]:
        variables = {name: LOG_VARIABLES[name] for name in LOG_NAMES}
        return {**variables, "NCCL_DEBUG_FILE": f"{folder}/nccl/%h.%p.log"}

    def read(folder: Path, result: LaunchResult) -> tuple[Facts, str, str, tuple[str, ...]]:
        # Where the file cannot be written, NCCL logs to standard output (debug.cc).
        (folder / "nccl" / "output").write_text(clean_text(result.stdout), encoding="utf-8", errors="replace")
        log, unread = read_logs(sorted((folder / "nccl").iterdir()), ignored=LOG_NAMES)
        _times, version, missing = _read_times(request, folder, result)
        said = NcclVersion.parse(version) if version else request.expected.get(side)
        return Facts(log=log, cluster=request.cluster, version=said), version, missing, unread

    result, (facts, version, missing, unread) = launch_side(
        request.sides, side, launcher, environ=environ, read=read, add=add
    )
    return _Look(
        facts=facts,
        seen=_describe_facts(facts, version),
        failure=_describe_end(request, result, missing),
        unread=unread,
    )


def _time_side(
    request: GateRequest, side: Side, launcher: Launcher, environ: Mapping[str, str]
) -> tuple[Times, str, str]:
    """Launch a side without a log; return its times, the NCCL version that it printed, and why it failed."""
    result, (times, version, missing) = launch_side(
        request.sides,
        side,
        launcher,
        environ=environ,
        read=lambda folder, result: _read_times(request, folder, result),
        add=lambda _folder: {"NCCL_DEBUG": "VERSION"},
    )
    return times, version, _describe_end(request, result, missing)


def _describe_end(request: GateRequest, result: LaunchResult, missing: str) -> str:
    if result.not_started:
        raise NotStartedError(
            f"the command does not start: {without_secrets(result.not_started)}",
            hint="its first word is the program: check its name and path, then run the command alone",
        )
    return describe_failure(result, timeout_s=request.sides.how.timeout_s, missing=missing)


def _read_times(request: GateRequest, folder: Path, result: LaunchResult) -> tuple[Times, str, str]:
    """Return the times of a launch, the NCCL version in its output, and what is missing or wrong."""
    text = clean_text(result.stdout)
    version = next((found for line in text.splitlines() if (found := logged_version(line))), "")
    try:
        tests = parse_text(text, errors=result.stderr)
    except BenchmarkError:
        steps = read_step_times(folder, steps=request.sides.how.steps)
        if steps.failure:
            return {}, version, f"neither a table of nccl-tests nor step times: {without_secrets(steps.failure)}"
        return {ComparedCall(name=_STEP): statistics.median(steps.step_us)}, version, ""
    version = version or next((str(NcclVersion.parse(test.nccl)) for test in tests if test.nccl), "")
    if wrong := sum(test.out_of_bounds or 0 for test in tests):
        return {}, version, f"wrong results: {count_noun(wrong, 'value')} out of bounds"
    times = _read_tables(tests)
    return times, version, "" if times else "the table of nccl-tests has no times"


def _read_tables(tests: Sequence[NcclTest]) -> Times:
    """Return the time of each row of the tables of nccl-tests; of repeated rows the geometric mean."""
    logs: dict[ComparedCall, list[float]] = {}
    for test in tests:
        name = str(test.collective) if isinstance(test.collective, Collective) else test.program or "nccl-tests"
        for row in test.rows:
            for in_place, time_us in enumerate(_halves_us(row)):
                if math.isfinite(time_us) and time_us > 0:
                    call = ComparedCall(name=name, size_bytes=row.size_bytes, dtype=row.dtype, in_place=bool(in_place))
                    logs.setdefault(call, []).append(math.log(time_us))
    return {call: math.exp(statistics.fmean(values)) for call, values in logs.items()}


def _halves_us(row: NcclTestRow) -> tuple[float, float]:
    out, inside = (half.time_us if half else math.nan for half in (row.out_of_place, row.in_place))
    return out, inside


def _describe_facts(facts: Facts, version: str) -> dict[str, str]:
    """Return the properties in the log of a side, by name; one that the log lacks is left out."""
    processes = facts.log.processes
    versions = {str(NcclVersion.parse(one.version.value)) for one in processes if one.version} or {version}
    variables: dict[str, set[str]] = {}
    for process in processes:
        for name, said in process.variables.items():
            if classify(name)[0] is not VariableClass.DEBUG:
                variables.setdefault(name, set()).add(said.value)
    found = {
        "NCCL": versions,
        "CUDA driver": {_cuda_version(one.driver) for one in processes if one.driver},
        "network": {one.network.value for one in processes if one.network},
        "plugins": {line for one in processes for line in one.plugins if _LOADED.search(line)},
        **dict(sorted(variables.items())),
    }
    return {name: " and ".join(sorted(values)) for name, values in found.items() if any(values)}


def _cuda_version(number: str) -> str:
    """Return the version of `cudaDriverVersion`: `12.8` for 12080."""
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}"


def _check_sides(request: GateRequest, seen: Mapping[Side, Mapping[str, str]]) -> tuple[str, ...]:
    """Refuse sides that are not what the user says, or do not differ; return notes on what was not seen.

    Raises:
        UsageError: the sides cannot be compared.
    """
    notes = []
    for side, found in seen.items():
        version, name = found.get("NCCL", ""), SIDE_NAMES[side]
        if " and " in version:
            if not request.stated:
                raise UsageError(
                    f"{name}: processes loaded NCCL {version}",
                    hint="the variables have to reach all ranks; for a job that needs both, use --differs",
                )
            notes.append(f"{name}: processes loaded NCCL {version}")
        expected = request.expected.get(side)
        if version and expected and str(expected) not in version.split(" and "):
            raise UsageError(
                f"{name} loaded NCCL {version}, not {expected}",
                hint="PyTorch brings its own library: put the other one into LD_PRELOAD on all nodes",
            )
    today, cluster = seen[Side.BASE].get("NCCL"), request.cluster
    if today and cluster and Side.BASE not in request.expected and today != str(cluster.version):
        notes.append(f"{cluster.name} is described with NCCL {cluster.version}, and today loads {today}")
    missing = [SIDE_NAMES[side] for side, found in seen.items() if "NCCL" not in found]
    if missing:
        notes.append(f"NCCL version: not seen ({' and '.join(missing)})")
    if request.stated:
        notes.append(f"difference as stated, not seen: {request.stated}")
    elif not find_differences(seen):
        version = seen[Side.BASE].get("NCCL", "")
        both = f"both sides loaded NCCL {version}" if version else "NCCL version: not seen on either side"
        raise UsageError(
            f"nothing differs between the two sides: {both}",
            hint="name what differs, such as a driver or firmware, with --differs"
            if missing
            else "the new library was not loaded: check its path, and that LD_PRELOAD reaches the ranks; what no log "
            "shows, such as firmware, is named with --differs",
        )
    return tuple(notes)


def judge_groups(pairs: Sequence[Mapping[ComparedCall, float]], *, margin: float) -> tuple[SizeGroup, ...]:
    """Judge each collective and range of sizes; may be called after each pair.

    Args:
        pairs: log of the new side's time over today's for each call, of each pair of launches.
        margin: largest slowdown that passes, as a share.

    Returns:
        The groups in order of collective and size. Their intervals hold together at `INTERVAL_ERROR`, whatever the
        number of looks: each group gets an equal part of the error.
    """
    calls: dict[tuple[str, int], list[ComparedCall]] = {}
    for call in sorted({call for pair in pairs for call in pair}):
        calls.setdefault(call.group, []).append(call)
    return tuple(
        _judge_group(pairs, members, margin=margin, error=INTERVAL_ERROR / len(calls)) for members in calls.values()
    )


def _judge_group(
    pairs: Sequence[Mapping[ComparedCall, float]], calls: Sequence[ComparedCall], *, margin: float, error: float
) -> SizeGroup:
    ratios = [statistics.fmean(shared) for pair in pairs if (shared := [pair[call] for call in calls if call in pair])]
    found = estimate_interval(ratios, error=error)
    if found.low > 1 + margin:
        decision = GateDecision.SLOWER
    elif found.high > 1 + margin:
        decision = GateDecision.UNDECIDED
    else:
        decision = GateDecision.FASTER if found.high < 1 else GateDecision.NOT_SLOWER
    sizes: dict[int, list[float]] = {}
    for pair in pairs:
        for call in calls:
            if call in pair:
                sizes.setdefault(call.size_bytes, []).append(pair[call])
    medians = {size_bytes: statistics.median(logs) for size_bytes, logs in sizes.items()}
    worst = max(medians, key=lambda size_bytes: medians[size_bytes])
    return SizeGroup(
        name=_name_group(*calls[0].group),
        decision=decision,
        ratio=found,
        pairs=len(ratios),
        worst=format_bytes(worst) if len(medians) > 1 else "",
        worst_ratio=math.exp(medians[worst]),
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


def _describe_failure_of_new(failure: str) -> str:
    return f"the command fails on the new side alone: {failure.splitlines()[0]}"


def _describe_decision(decision: GateDecision, groups: Sequence[SizeGroup], *, margin: float) -> str:
    """Return the sentence on the group that decides."""
    worst = max((group for group in groups if group.decision is decision), key=lambda group: group.ratio.estimate)
    change = f"{worst.name} takes {worst.slowdown}"
    limit = f"{margin * 100:.3g} %"
    if decision is GateDecision.SLOWER:
        return f"{change}, more than the {limit} margin"
    if decision is GateDecision.UNDECIDED:
        return f"{change}, which does not decide about the {limit} margin"
    if decision is GateDecision.FASTER:
        return change
    return f"{change}, at most the {limit} margin"
