"""`ncclt verify`: a real training launched as two sides, in pairs of random order."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ncclt.core.budget import MIN_BLOCKS, MOST_LAUNCHES
from ncclt.core.plural import count_noun
from ncclt.core.recommendation import Decision, Verdict
from ncclt.core.verification import Side, StepLaunch, Variables, Verification
from ncclt.errors import NotStartedError, StudyStoppedError, UsageError, reason
from ncclt.launch.launcher import Launcher, LaunchResult
from ncclt.launch.mpi import forward_variables, is_open_mpi
from ncclt.measure.redact import variables_without_secrets, without_secrets, words_without_secrets
from ncclt.profile.record.plan import Method, RecordOptions, plan_recording
from ncclt.profile.record.ranks import StepTimes, read_step_times
from ncclt.profile.record.session import make_folder
from ncclt.prove.comparison import Comparison
from ncclt.prove.evidence import LAUNCHES_PER_BLOCK
from ncclt.prove.experiment import PAUSE, MeanGain, StepTally, compare_means
from ncclt.prove.interleave import launch_order
from ncclt.prove.verdict import Pairs, judge, state_step_gain

_PER_BLOCK = len(Side) * LAUNCHES_PER_BLOCK
"""Launches of a block: two pairs."""

_TAIL_LINES = 20
_TAIL_CHARACTERS = 4000
"""Kept of the output of a failed launch: a traceback and what came before it."""

Read = TypeVar("Read")

PROGRAM_HINT = "its first word is the program: check its name and path, then run the command alone"

_UNEVEN = 1.25
"""Mean over median of the step times above which a few long steps carry much of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """Comparison request.

    Attributes:
        argv: the training's command line.
        base_argv: what it is compared with, where that is another command; empty = the same under `base_env`.
        base_env, tuned_env: what the two sides set, sorted by name.
        how: number, length and limits of the launches; the comparison ends as soon as it is decided.
        cluster, model, recommendation: of what is verified; empty where the user's own two sides are compared.
        removed_env: names of inherited variables that the launcher removes from both sides.
        site_variables: of the site, which both sides inherit.
        notes: caveats for the reader beforehand.
        open_mpi: sides whose command is Open MPI's launcher.
    """

    argv: tuple[str, ...]
    base_argv: tuple[str, ...] = ()
    base_env: Variables
    tuned_env: Variables
    how: Comparison
    cluster: str = ""
    model: str = ""
    recommendation: str = ""
    removed_env: tuple[str, ...] = ()
    site_variables: Variables = ()
    notes: tuple[str, ...] = ()
    open_mpi: frozenset[Side] = frozenset()

    def __post_init__(self) -> None:
        if self.base_env == self.tuned_env and self.base_argv in ((), self.argv):
            raise UsageError(
                "both sides have the same environment: there is nothing to compare"
                if not self.base_argv
                else "both sides are the same command in the same environment: there is nothing to compare",
                hint="give --env NAME=VALUE for what is judged, --base NAME=VALUE for what it is compared with, or "
                "another command with --against",
            )

    @property
    def order(self) -> tuple[Side, ...]:
        """Return the side of every launch, if nothing is decided earlier; the same comparison has the same order.

        Not the environments: a table that is delivered has another folder in each run.
        """
        seed = json.dumps([self.argv, self.base_argv, self.recommendation])
        pairs = range(LAUNCHES_PER_BLOCK * self.how.blocks)
        return tuple(side for pair in pairs for side in launch_order((Side.BASE, Side.TUNED), pair, seed=seed))

    def side(self, side: Side) -> tuple[tuple[str, ...], Variables]:
        """Return the command line of a side, and what it sets."""
        return (self.base_argv or self.argv, self.base_env) if side is Side.BASE else (self.argv, self.tuned_env)


def open_mpi_sides(argv: tuple[str, ...], base_argv: tuple[str, ...], *, environ: Mapping[str, str]) -> frozenset[Side]:
    """Return the sides whose command is Open MPI's launcher; an empty `base_argv` is the same command."""
    commands = {Side.BASE: base_argv or argv, Side.TUNED: argv}
    return frozenset(side for side, words in commands.items() if words and is_open_mpi(words[0], environ=environ))


def verify(
    request: VerifyRequest,
    launcher: Launcher,
    *,
    environ: Mapping[str, str],
    watch: Callable[[StepLaunch, LaunchResult], None],
    now: Callable[[], str],
    earlier: Sequence[StepLaunch] = (),
) -> Verification:
    """Run a training interleaved under both environments and judge its step times.

    A failed launch of the tuned side disqualifies it and ends the comparison.

    Args:
        environ: the environment that the launcher passes on.
        watch: called after every launch.
        now: ISO time.
        earlier: stored launches of this comparison, to resume from.

    Raises:
        InterruptedComparisonError: the user interrupted it.
        StudyStoppedError: the base side fails, a launch does not start (NotStartedError), or the allocation is lost.
        UsageError: the folder or the command cannot be used.
    """
    launches, times = list(earlier), StepTimes()
    try:
        for order, side in list(enumerate(request.order))[len(launches) :]:
            launch, measured = _time_side(request, side, order, launcher, environ=environ, watch=watch)
            launches.append(launch)
            times = times if launch.failure else measured
            # A failure speaks against the tuned side only where the base has been launched.
            if any(launch.failure for launch in launches) and any(launch.side is Side.BASE for launch in launches):
                break
            ends_block = not launch.failure and len(launches) % _PER_BLOCK == 0
            if (
                ends_block
                and _judge_steps(launches, min_effect=request.how.min_effect).decision is not Decision.UNDECIDED
            ):
                break
    except KeyboardInterrupt:
        done = _build_verification(request, launches, times, now()) if len(launches) > len(earlier) else None
        raise InterruptedComparisonError(done) from None
    return _build_verification(request, launches, times, now())


def _time_side(
    request: VerifyRequest,
    side: Side,
    order: int,
    launcher: Launcher,
    *,
    environ: Mapping[str, str],
    watch: Callable[[StepLaunch, LaunchResult], None],
) -> tuple[StepLaunch, StepTimes]:
    """Launch a side once; for arguments and errors see `verify`."""
    steps = request.how.steps
    result, times = launch_side(
        request, side, launcher, environ=environ, read=lambda folder, _result: read_step_times(folder, steps=steps)
    )
    missing = f"no step times: {times.failure}" if times.failure else ""
    failure = describe_side_failure(request, side, result, missing=missing, environ=environ)
    launch = StepLaunch(side=side, order=order, step_us=times.step_us, failure=failure)
    watch(launch, result)
    if not failure:
        return launch, times
    if result.not_started:
        problem = "training does not start" if side is Side.TUNED else _name_base_failure(request)
        raise NotStartedError(f"the {problem}: {failure}", hint=PROGRAM_HINT)
    if side is Side.BASE:
        raise StudyStoppedError(
            f"the {_name_base_failure(request)}: {failure}",
            hint="step times come from the steps of a torch optimizer; run the command alone, then with "
            "`ncclt profile record`",
        )
    return replace(launch, step_us=()), times


def _name_base_failure(request: VerifyRequest) -> str:
    return "command of --against fails" if request.base_argv else "training fails in the environment to compare with"


class InterruptedComparisonError(KeyboardInterrupt):
    """The user interrupted a comparison; its running launch was ended.

    Attributes:
        done: its launches, to resume from; None = no new launches.
    """

    def __init__(self, done: Verification | None) -> None:
        super().__init__()
        self.done = done


def can_resume(stored: Verification, how: Comparison) -> bool:
    """Check that a stored comparison is undecided and more launches may decide it."""
    open_yet = stored.verdict.decision is Decision.UNDECIDED and not any(launch.failure for launch in stored.launches)
    return open_yet and len(stored.launches) < how.blocks * _PER_BLOCK


def find_open(stored: Iterable[Verification], request: VerifyRequest) -> tuple[StepLaunch, ...]:
    """Return the launches of the newest equal comparison of a recommendation to resume; empty = start a new one.

    Two sides of the user may be another training in another folder: they always start anew.
    """
    how = request.how
    wanted = (words_without_secrets(request.argv), variables_without_secrets(request.base_env), request.site_variables)
    for comparison in stored if request.recommendation else ():
        sides = (comparison.argv, comparison.base_env, comparison.site_variables)
        lengths = (comparison.warmup, comparison.steps, comparison.verdict.min_effect)
        if sides == wanted and lengths == (how.warmup, how.steps, how.min_effect):
            return comparison.launches if can_resume(comparison, how) else ()
    return ()


def _build_verification(
    request: VerifyRequest, launches: Sequence[StepLaunch], times: StepTimes, created: str
) -> Verification:
    verdict = _verdict(request, launches)
    steps_us = [launch.step_us for launch in launches]
    content = json.dumps([request.argv, request.base_argv, request.base_env, request.tuned_env, steps_us, created])
    return Verification(
        id=hashlib.sha256(content.encode()).hexdigest()[:12],
        cluster=request.cluster,
        model=request.model,
        recommendation=request.recommendation,
        argv=words_without_secrets(request.argv),
        base_argv=request.base_argv and words_without_secrets(request.base_argv),
        base_env=variables_without_secrets(request.base_env),
        tuned_env=variables_without_secrets(request.tuned_env),
        removed_env=request.removed_env,
        site_variables=request.site_variables,
        warmup=request.how.warmup,
        steps=request.how.steps,
        ranks=times.ranks,
        hosts=times.hosts,
        launches=tuple(launches),
        verdict=verdict,
        notes=(*request.notes, *_notes(launches, times)),
        created=created,
    )


def launch_side(
    request: VerifyRequest,
    side: Side,
    launcher: Launcher,
    *,
    environ: Mapping[str, str],
    read: Callable[[Path, LaunchResult], Read],
    add: Callable[[Path], Mapping[str, str]] = lambda _folder: {},
) -> tuple[LaunchResult, Read]:
    """Run the command of a side once and read its results; no processes or files are left afterwards.

    Args:
        environ: the environment that the launcher passes on.
        read: reads the results from the recording's folder and the launch.
        add: returns further variables, given that folder.

    Raises:
        UsageError: the folder cannot be used, for example since its disk is full.
    """
    argv, variables_of_side = request.side(side)
    open_mpi = side in request.open_mpi
    options = RecordOptions(
        method=Method.TORCH,
        steps=request.how.steps,
        warmup=request.how.warmup,
        stop_after=not request.how.run_to_end,
        times_only=True,
    )
    folder = make_folder(request.how.directory, keep=None)
    try:
        own = {**dict(variables_of_side), **add(folder)}
        recording = plan_recording(argv, options, folder=folder, environ={**environ, **own}, open_mpi=open_mpi)
        variables = own | dict(recording.set_env)
        argv, forwarded = forward_variables(
            recording.argv, tuple(sorted(own)), environ={**environ, **variables}, open_mpi=open_mpi
        )
        plan = launcher.plan(argv, variables=variables | forwarded, timeout_s=request.how.timeout_s)
        for path, content in recording.files:
            (folder / path).write_text(content, encoding="utf-8")
        result = launcher.run(plan)
        result.require_nodes()
        return result, read(folder, result)
    except OSError as error:
        raise UsageError(f"cannot use {folder}: {reason(error)}", hint="is its disk full? see --dir") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def describe_failure(
    result: LaunchResult, *, timeout_s: float, missing: str = "", environ: Mapping[str, str] | None = None
) -> str:
    """Describe the failure of a launch of the training, with its last lines of output; empty = none.

    Args:
        missing: what it did not give although it ended well; empty = nothing.
        environ: of the launch, whose secret values are removed; None = of this process.
    """
    if result.not_started:
        return without_secrets(result.not_started, environ=environ)
    if result.survivors:
        cause = f"its processes {', '.join(map(str, result.survivors))} could not be ended"
    elif result.timed_out:
        cause = f"ended after {timeout_s:g} s (--timeout)"
    elif result.exit_code != 0:
        cause = f"exit code {result.exit_code}"
    elif missing:
        cause = without_secrets(missing, environ=environ)
    else:
        return ""
    output = without_secrets(result.stderr.strip() or result.stdout.strip(), environ=environ)
    tail = "\n".join(output.splitlines()[-_TAIL_LINES:])[-_TAIL_CHARACTERS:]
    return f"{cause}\n{tail}".rstrip("\n")


def describe_side_failure(
    request: VerifyRequest, side: Side, result: LaunchResult, *, missing: str, environ: Mapping[str, str]
) -> str:
    """Describe the failure of a launch of a side; for the rest see `describe_failure` and `launch_side`."""
    environ = {**environ, **dict(request.side(side)[1])}
    return describe_failure(result, timeout_s=request.how.timeout_s, missing=missing, environ=environ)


def _build_pairs(launches: Sequence[StepLaunch]) -> Pairs:
    """Return the launches of all whole blocks in pairs."""
    times_us = {
        side: [launch.time_us for launch in launches if launch.side is side and launch.time_us is not None]
        for side in Side
    }
    complete = min(map(len, times_us.values())) // 2 * 2
    return Pairs(default_us=tuple(times_us[Side.BASE][:complete]), policy_us=tuple(times_us[Side.TUNED][:complete]))


def _judge_steps(launches: Sequence[StepLaunch], *, min_effect: float, failure: str = "") -> Verdict:
    """Judge pairs of launches by their mean steps; a gain counts once stalls that would cancel it are ruled out."""
    verdict = judge(_build_pairs(launches), min_effect=min_effect, failure=failure)
    if verdict.decision is not Decision.TUNED or (mean := _compare_steps(launches)).low > 0:
        return verdict
    if mean.is_lost:
        lost = f"the mean step takes {-100 * mean.saving:.1f} % longer, although most steps are faster"
        return replace(verdict, decision=Decision.KEEP_DEFAULT, reason=lost)
    return replace(
        verdict,
        decision=Decision.UNDECIDED,
        reason=f"leading, but {mean.steps:,.0f} steps are too few to rule out stalls that cancel it; set more --steps",
    )


def _compare_steps(launches: Sequence[StepLaunch]) -> MeanGain:
    """Compare all steps of both sides, without those at which half of the base's launches pause."""
    tallies, base = {side: StepTally() for side in Side}, [run.step_us for run in launches if run.side is Side.BASE]
    level_us = statistics.median(itertools.chain.from_iterable(base))
    paused = Counter(number for step_us in base for number, time_us in enumerate(step_us) if time_us > PAUSE * level_us)
    for launch in launches:
        for number, time_us in enumerate(launch.step_us):
            if 2 * paused[number] < max(len(base), 2):
                tallies[launch.side].add(MOST_LAUNCHES * launch.order + number, time_us / level_us)
    return compare_means(tallies[Side.BASE], tallies[Side.TUNED], set())


def _verdict(request: VerifyRequest, launches: Sequence[StepLaunch]) -> Verdict:
    failure = next((launch.failure for launch in launches if launch.failure), "")
    verdict = _judge_steps(launches, min_effect=request.how.min_effect, failure=failure.partition("\n")[0])
    if request.base_argv:
        return replace(verdict, reason=_describe_command_ratio(verdict, is_failed=bool(failure)))
    return state_step_gain(verdict, count_noun(verdict.blocks, "block"))


def _describe_command_ratio(verdict: Verdict, *, is_failed: bool) -> str:
    """Return the sentence on two commands, one of which may well be slower."""
    if is_failed:
        return verdict.reason.replace("the policy", "the command", 1)
    if verdict.blocks < MIN_BLOCKS:
        return verdict.reason
    low, high = verdict.interval
    ratio = (
        f"speed-up over the command of --against: {verdict.speedup:.2f}x (95 % CI {low:.2f} to {high:.2f}, "
        f"{count_noun(verdict.blocks, 'block')})"
    )
    if verdict.decision is Decision.TUNED:
        return ratio
    if verdict.decision is Decision.UNDECIDED:
        return f"{ratio}; {verdict.reason}"
    return f"{ratio}: {'slower' if high < 1 else f'below the {verdict.min_effect * 100:g} % threshold'}"


def _notes(launches: Sequence[StepLaunch], times: StepTimes) -> list[str]:
    notes = []
    if times.ranks < times.world_size:
        notes.append(
            f"step times from {times.ranks} of {times.world_size} ranks; the others make no optimizer steps or cannot "
            "see the folder of --dir"
        )
    uneven = [x for x in launches if x.step_us and statistics.fmean(x.step_us) > _UNEVEN * statistics.median(x.step_us)]
    if len(uneven) * 2 > len(launches):
        notes.append(
            "uneven steps: a few long ones take much of the time; if the program synchronizes with its GPU only "
            "every few steps, synchronize in every step, for example with loss.item()"
        )
    return notes
