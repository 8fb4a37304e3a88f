"""Tuning over the restarts of one training: each start is a segment with one arm, and the best arm goes on.

Nothing here may stop a training that would have run without ncclt. A segment ends only where the program handles the
signal, behind the same step on all ranks (`profile/record/injected/segment.py`). An error of our own, a training that
does not resume, or one that ignores the signal ends the experiment: the training runs on with what it has.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ncclt.core.attestation import Form
from ncclt.core.cluster import Cluster
from ncclt.core.duration import format_duration
from ncclt.core.plural import count_noun
from ncclt.core.recommendation import Decision, Recommendation, Request, Verdict
from ncclt.core.segment import CONTROL, Segment, cost_share
from ncclt.core.trial import RESTARTS, TimesOrigin
from ncclt.core.verification import Side, StepLaunch, Variables, Verification, sorted_variables
from ncclt.core.workload import Workload
from ncclt.deliver.node_files import place_plugin, write_table
from ncclt.errors import NccltError, NotFoundError, UsageError
from ncclt.launch.process.process_tree import MARK_VARIABLE, end_members, new_mark
from ncclt.launch.process.reaper import reaper
from ncclt.measure.redact import words_without_secrets
from ncclt.nccl.tuner_plugin import find as find_plugin
from ncclt.nccl.tuner_plugin.compact_table import POLICY_VARIABLE
from ncclt.pipeline.candidates import (
    MOST_CANDIDATES,
    build_study,
    describe_policy,
    explain_other_backend,
    propose_candidates,
    publish_winner,
)
from ncclt.pipeline.restart_folder import RunFolder, open_run_folder, read_run_states
from ncclt.profile import read_workload
from ncclt.profile.record.command import run_foreground
from ncclt.profile.record.plan import WINDOW_STEPS, Method, RecordOptions, plan_recording
from ncclt.profile.record.ranks import RankReport, StepTimes, find_other_backends, read_reports, read_step_times
from ncclt.profile.record.session import make_folder
from ncclt.prove.comparison import Comparison
from ncclt.prove.segments import Race
from ncclt.prove.tuned_arm import has_gain, plan_tuned_arm
from ncclt.store.store import Store

GRACE_S = 30.0
"""Time between SIGTERM and SIGKILL: Slurm's default (KillWait), to save a checkpoint."""

_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU})
"""Signals by which people and schedulers end a training; after one of them ncclt starts it no more."""

_NOTICES = _ENDING | {signal.SIGUSR1, signal.SIGUSR2}
"""Those and the ones that announce an end; after one of them ncclt asks for no restart."""

_MOST_LOOKING = 0.05
"""Max share of the time in which the journals of the ranks are read: with many ranks that takes long."""

_LATE = 5.0
"""Factor over the slowest window so far, from the start of the processes on, beyond which a candidate hangs."""

_STARTS = 3
"""Attempts to start the training again after a restart that ncclt caused."""

_PAUSE_S = 5.0
"""Time before another attempt: a port or a GPU may not be free yet."""

_NO_STEP = "no optimizer step was seen; --restarts needs a PyTorch training that uses NCCL"

_KILL = " (if it saves checkpoints by itself, --signal SIGKILL ends it without asking)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingArm:
    """Arm of a training: the changes to its environment.

    Attributes:
        name: `CONTROL`, or the id of a revision or proposal.
        candidate: published or proposed; None = the control.
        label: the policy as text.
        set_env: variables that it sets; they replace the tuning variables of the user.
    """

    name: str
    candidate: Recommendation | None = None
    label: str = ""
    set_env: Variables = ()

    @property
    def recommendation(self) -> str:
        """Return the id of the published revision; empty = not published."""
        return self.candidate.id if self.candidate and not self.candidate.is_untried else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRequest:
    """Request to tune over the restarts of a training.

    Attributes:
        argv: its command.
        model: its name, and that of its workload.
        cluster: sized to it; None = not known.
        today: tuning variables that it runs with, which the control keeps.
        how: warm-up and measured steps of a segment, smallest gain, most blocks, time limit and folder.
        number: of the signal on which it saves a checkpoint and exits.
        max_cost: share of the training's time that the experiment may take.
        hours: expected length of the training; 0 = not known: only the time so far counts.
        force: restart a training without NCCL too, whose settings change nothing.

    Raises:
        UsageError: no command, or an impossible share.
    """

    argv: tuple[str, ...]
    model: str
    cluster: Cluster | None = None
    today: Variables
    how: Comparison
    number: int
    max_cost: float
    hours: float
    force: bool = False

    @property
    def cluster_name(self) -> str:
        """Return the name of the cluster; empty = not known."""
        return self.cluster.name if self.cluster else ""

    def __post_init__(self) -> None:
        if not 0 < self.max_cost <= 1:
            raise UsageError(f"--max-cost must be a share above 0 and at most 1, not {self.max_cost:g}")
        if not self.argv:
            raise UsageError(
                "give the command of the training after --",
                hint="for example: ncclt autotune --restarts -- torchrun --nproc-per-node=8 train.py",
            )


@dataclass(slots=True)
class _Start:
    """One start of the training while it runs."""

    arm: TrainingArm
    block: int
    folder: Path
    records: bool
    steps: int
    mark: str
    began_s: float = field(default_factory=time.monotonic)
    began_at: float = field(default_factory=time.time)
    next_look_s: float = 0.0
    first_step_at: float = 0.0
    has_window: bool = False
    done_before: int | None = None
    times: StepTimes | None = None
    restart_s: float = 0.0
    is_asked: bool = False
    is_waiting: bool = False
    stopped_at: float = 0.0
    stopped_after: int = 0
    processes: frozenset[tuple[str, int]] = frozenset()
    ended_s: float = 0.0
    ended_for: str = ""


class SegmentedTraining:
    """A training under ncclt's restarts.

    Args:
        request: what is run, and how.
        store: of its segments.
        environ: of this process.
        find_arms: returns the candidates for the workload of the training, and may write files that they need into
            the given folder.
        say: shows one line.
        now: ISO time.
    """

    def __init__(
        self,
        request: RestartRequest,
        store: Store,
        *,
        environ: Mapping[str, str],
        find_arms: Callable[[Workload, Path], tuple[TrainingArm, ...]],
        say: Callable[[str], None],
        now: Callable[[], str],
    ) -> None:
        self._request, self._store, self._environ = request, store, environ
        self._find_arms, self._say, self._now = find_arms, say, now
        self._segments = tuple(
            segment for segment in store.records.segments(request.model) if segment.base_env == request.today
        )
        self._workload = _find_workload(store, request.model)
        self._arms: dict[str, TrainingArm] | None = None
        self._preparation: threading.Thread | None = None
        self._off = self._too_short = ""
        self._folder: RunFolder | None = None
        self._signals: set[int] = set()
        self._missed: list[int] = []
        self._before: _Start | None = None
        self._decided: dict[str, Decision] = {}
        self._other_backends, self._ranks = "", 0
        self._is_resume_checked = False
        self._slowest_window_s = 0.0

    def run(self) -> int:
        """Run the training to its end and return its exit code."""
        with ExitStack() as stack:
            stack.enter_context(self._keep_signals())
            with self._never_in_the_way():
                self._folder = stack.enter_context(open_run_folder(self._request.how.directory, self._request.model))
            return self._run_starts()

    @contextmanager
    def _keep_signals(self) -> Iterator[None]:
        """Note signals that come while no training runs, so that none ends us before our folders are removed."""

        def note(number: int, _frame: object) -> None:
            self._signals.add(number)
            self._missed.append(number)

        kept = [number for number in _NOTICES if signal.getsignal(number) != signal.SIG_IGN]
        handlers = {number: signal.signal(number, note) for number in kept}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler or signal.SIG_DFL)

    def _run_starts(self) -> int:
        failed = 0
        while True:
            arm, block = TrainingArm(name=CONTROL), -1
            with self._never_in_the_way():
                self._prepare_arms()
                arm, block = self._choose()
            if ending := self._signals & _ENDING:
                self._report(ended=True)
                return 128 + min(ending)
            start, code = self._run_segment(arm, block)
            if self._signals & _ENDING:
                self._finish(start, code)
                self._report(ended=True)
                return code
            if start.stopped_at:
                failed = 0
                self._finish(start, code)
                self._before = start
                self._report()
                continue
            is_arm_out = bool(self._finish(start, code))
            # Without ncclt the training would not have ended here: it was started again, or with this arm.
            is_start_lost = code != 0 and self._before is not None and not start.first_step_at and failed < _STARTS
            if not (is_arm_out or is_start_lost):
                if not (start.first_step_at or self._off or self._is_measured):
                    self._off = f"the command failed with exit code {code}" if code else _NO_STEP
                if not (code or start.has_window or self._off):
                    needed = self._request.how.warmup + start.steps
                    self._too_short = (
                        f"a start is measured in its first {needed} steps, and this one ended before: lower --window "
                        "and --warmup, or compare many starts of short jobs (`ncclt tune --on-jobs`)"
                    )
                self._report(ended=True)
                return code
            failed += 1
            self._say(f"ncclt: {arm.name} failed with exit code {code}; starting the training again")
            time.sleep(_PAUSE_S if is_start_lost else 0.0)

    # --- choice of the next arm ---

    def _race(self, more: Sequence[Segment] = ()) -> Race | None:
        if not self._arms:
            return None
        names = tuple(self._arms)
        segments = tuple(s for s in (*self._segments, *more) if s.arm in {CONTROL, *names})
        segments = _select_comparable(segments, self._place())
        how = self._request.how
        return Race(
            model=self._request.model, arms=names, segments=segments, min_effect=how.min_effect, blocks=how.blocks
        )

    def _choose(self, more: Sequence[Segment] = ()) -> tuple[TrainingArm, int]:
        """Return arm and block of the next start; the first one ever, and any without candidates, is the control's."""
        control = TrainingArm(name=CONTROL)
        race = self._race(more)
        if self._off or race is None or not race.segments:
            return control, -1
        if (following := race.next_arm()) is not None:
            name, block = following
            return self._arms_by_name(name), block
        concluded = race.conclude()
        return (control if concluded is None else self._arms_by_name(concluded[0])), -1

    def _place(self) -> str:
        """Return the digest of workload and fingerprint; segments with another one are not compared."""
        workload, cluster = self._workload, self._request.cluster
        if workload is None or cluster is None:
            return ""
        return hashlib.sha256(f"{workload.digest()} {cluster.fingerprint().digest()}".encode()).hexdigest()[:12]

    def _arms_by_name(self, name: str) -> TrainingArm:
        return (self._arms or {}).get(name) or TrainingArm(name=CONTROL)

    def _prepare_arms(self) -> None:
        """Find the candidates once the workload is known."""
        if self._arms is not None or self._workload is None or self._off:
            return
        if self._folder is None:
            return
        arms = {arm.name: arm for arm in self._find_arms(self._workload, self._folder.path)}
        self._decided = dict.fromkeys(arms, Decision.UNDECIDED)
        for arm in arms.values():
            self._say(f"ncclt: candidate {arm.name}: {arm.label}")
        self._arms = arms
        self._folder.show(candidates=[f"candidate {arm.name}: {arm.label}" for arm in arms.values()])
        if not arms:
            self._stop_experiment("there is no candidate to try")

    def _prepare_in_background(self, start: _Start) -> None:
        with self._never_in_the_way():
            if start.records:
                traces = sorted((start.folder / "traces").glob("*.json"))
                self._workload = read_workload(traces, name=self._request.model, source="kineto")
                self._store.workloads.add(self._workload, replace=False)
            self._prepare_arms()

    # --- one segment ---

    def _run_segment(self, arm: TrainingArm, block: int) -> tuple[_Start, int]:
        request, how = self._request, self._request.how
        records = self._workload is None
        steps = min(how.steps, WINDOW_STEPS) if records else how.steps
        start = _Start(arm=arm, block=block, folder=Path(), records=records, steps=steps, mark=new_mark())
        environ = dict(self._environ)
        if arm.name != CONTROL:
            environ = {name: value for name, value in environ.items() if name not in dict(request.today)}
            environ |= dict(arm.set_env)
        argv: Sequence[str] = request.argv
        number = len(self._segments) + 1
        with self._never_in_the_way():
            if self._folder is not None:
                self._folder.show(status=f"start {number} with {arm.name}", next_at=0.0)
            start.folder = make_folder(how.directory if self._folder is None else self._folder.path, keep=None)
            plan = plan_recording(
                request.argv,
                RecordOptions(
                    method=Method.TORCH,
                    steps=start.steps,
                    warmup=how.warmup,
                    times_only=not start.records,
                    stop_signal=request.number,
                ),
                folder=start.folder,
                environ=environ,
            )
            for path, content in plan.files:
                (start.folder / path).write_text(content, encoding="utf-8")
            argv, environ = plan.argv, environ | dict(plan.set_env)
            reaper().begin(start.mark, grace_s=GRACE_S, environment={})
        outer = environ.get(MARK_VARIABLE)
        environ[MARK_VARIABLE] = f"{outer}/{start.mark}" if outer else start.mark
        self._say(f"ncclt: start {number} with {arm.name}{f' ({arm.label})' if arm.label else ''}")

        def watch(pid: int) -> None:
            with self._never_in_the_way():
                self._pass_missed(start, pid)
                self._watch(start, pid)

        def passed(number: int) -> None:
            self._signals |= {number} & _NOTICES

        try:
            code = run_foreground(argv, environ=environ, watch=watch, passed=passed)
            with self._never_in_the_way():
                start.next_look_s = 0.0
                self._look(start, 0)
            if start.stopped_at and not self._signals & _ENDING:
                with self._never_in_the_way():
                    end_members(start.mark, grace_s=GRACE_S)  # what is left would keep GPU memory from the next start
        finally:
            reaper().end(start.mark)
            if start.folder != Path():
                shutil.rmtree(start.folder, ignore_errors=True)
        return start, code

    @contextmanager
    def _never_in_the_way(self) -> Iterator[None]:
        """Turn every error of our own into the end of the experiment: the training goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- see above
            message = error.message if isinstance(error, NccltError) else f"{type(error).__name__}: {error}"
            self._stop_experiment(message)

    def _stop_experiment(self, why: str) -> None:
        if not self._off:
            self._off = why
            with suppress(Exception):
                if self._folder is not None:
                    self._folder.show(status=f"no more restarts: {why}", next_at=0.0)
            self._say(f"ncclt: no more restarts: {why}; the training goes on as it runs")

    def _pass_missed(self, start: _Start, pid: int) -> None:
        """Pass signals on that came before the training started; notices only once it makes steps and handles them."""
        for number in [one for one in self._missed if one in _ENDING or start.first_step_at]:
            self._missed.remove(number)
            os.kill(pid, number)

    def _watch(self, start: _Start, pid: int) -> None:
        if self._folder is not None:
            self._folder.show_alive()
        if start.ended_for:
            if time.monotonic() - start.ended_s > GRACE_S:
                end_members(start.mark)
            return
        self._look(start, pid)
        if start.arm.name == CONTROL or start.times is not None or self._signals:
            return
        # A candidate that hangs; --timeout alone would end a training of long steps.
        how, known = self._request.how, self._slowest_window_s
        late_s = max(how.timeout_s, _LATE * known)
        if time.monotonic() - start.began_s > late_s:
            start.ended_s, start.ended_for = time.monotonic(), f"no {how.steps} steps in {late_s:.0f} s"
            self._say(f"ncclt: {start.arm.name}: {start.ended_for}: ending this start")
            os.kill(pid, signal.SIGTERM)

    def _look(self, start: _Start, pid: int) -> None:
        """Read the journals of the ranks, and end the segment when it is time; without a process it has ended."""
        now_s = time.monotonic()
        if now_s < start.next_look_s or start.folder == Path():
            return
        try:
            self._follow(start, read_reports(start.folder), pid)
        finally:
            start.next_look_s = time.monotonic() + (time.monotonic() - now_s) / _MOST_LOOKING

    def _follow(self, start: _Start, reports: Sequence[RankReport], pid: int) -> None:
        ranks = [report for report in reports if report.first_step_at]
        if ranks and not start.first_step_at:
            start.first_step_at = min(report.first_step_at for report in ranks)
            start.done_before = next((r.resumed_after for r in ranks if r.resumed_after is not None), None)
            self._compare_with_before(start)
        self._other_backends = find_other_backends(ranks) or self._other_backends
        start.has_window = any(len(report.inside_s) >= start.steps for report in ranks)
        self._ranks = max((report.world_size for report in ranks), default=self._ranks)
        stopped = [report for report in ranks if report.stopped_after]
        if any(report.state == "not stopped" for report in stopped):
            start.stopped_at = 0.0
            self._stop_experiment(f"the training ignores {self._signal_name}, on which it should save and exit{_KILL}")
        elif stopped and not start.stopped_at:
            start.stopped_at = max(report.stopped_at for report in stopped)
            start.stopped_after = max(report.stopped_after for report in stopped)
            start.processes = frozenset((report.host, report.pid) for report in reports)
        elif stopped and pid and not start.ended_for:
            if {(report.host, report.pid) for report in reports} - start.processes:
                # The launcher starts the ranks again by itself, with the same arm.
                start.ended_s, start.ended_for = time.monotonic(), "restarted by its launcher"
                os.kill(pid, signal.SIGTERM)
        elif self._other_backends and not (self._request.force or self._off):
            self._stop_experiment(f"no NCCL in this job, it trains over {self._other_backends} (--force tries anyway)")
        elif failure := next((text for report in reports for text in report.failures), ""):
            self._stop_experiment(failure)
        elif ranks and pid and not (start.is_asked or self._off or self._signals):
            self._ask_to_stop(start, ranks)

    @property
    def _signal_name(self) -> str:
        return signal.Signals(self._request.number).name

    def _ask_to_stop(self, start: _Start, ranks: Sequence[RankReport]) -> None:
        if start.times is None:
            times = read_step_times(start.folder, steps=start.steps)
            if times.failure:
                return
            start.times = times
            self._slowest_window_s = max(self._slowest_window_s, time.monotonic() - start.began_s)
        if self._arms is None and self._preparation is None:
            # In a thread: to read large traces takes minutes, in which signals must still reach the training.
            self._preparation = threading.Thread(target=self._prepare_in_background, args=(start,), daemon=True)
            self._preparation.start()
        if self._arms is None or self._off or any(report.is_handled is None for report in ranks):
            return
        if not any(report.is_handled for report in ranks):
            self._stop_experiment(
                f"the training has no handler for {self._signal_name}, so it would not save a checkpoint{_KILL}"
            )
            return
        if self._may_restart(start):
            (start.folder / "stop").touch()
            start.is_asked = True

    def _may_restart(self, start: _Start) -> bool:
        """Check that another arm is next, and that the budget has room for that restart.

        A candidate needs room for two: the way back as well. That way is free where the candidate is slower.
        """
        segment = self._build(start, failure="")
        following, block = self._choose([segment])
        if following.name == start.arm.name and block < 0:
            return False  # the experiment is over
        control_us = self._control_us(segment)
        is_slower = start.arm.name != CONTROL and bool(control_us) and (segment.time_us or 0.0) > (control_us or 0.0)
        if is_slower:
            return True
        everything = (*self._segments, segment)
        known = [one.restart_s for one in everything if one.restart_s > 0]
        restart_s = statistics.median(known) if known else max(start.first_step_at - start.began_at, 0.0)
        restarts = 2 if following.name != CONTROL else 1
        wall_s, max_cost = sum(one.wall_s for one in everything), self._request.max_cost
        cost_s = sum(one.cost_s for one in everything) + restarts * restart_s
        if cost_s <= max_cost * max(wall_s, self._request.hours * 3600):
            return True
        if not start.is_waiting:
            start.is_waiting, wait_s = True, cost_s / max_cost - wall_s
            if self._folder is not None:
                self._folder.show(next_at=time.time() + wait_s)
            self._say(
                f"ncclt: a restart costs about {format_duration(restart_s * 1e6)}; --max-cost {max_cost:g} affords the "
                f"next one in {format_duration(wait_s * 1e6)}; a higher one, or --hours, allows it sooner"
            )
        return False

    def _compare_with_before(self, start: _Start) -> None:
        """Count the cost of a restart that ncclt caused, and see whether the training resumed."""
        before = self._before
        if before is None:
            return
        step_s = statistics.median(before.times.step_us) / 1e6 if before.times and before.times.step_us else 0.0
        start.restart_s = max(start.first_step_at - before.stopped_at - step_s, 0.0)
        if start.done_before is None or before.done_before is None:
            if not self._is_resume_checked:
                self._say("ncclt: cannot see whether it resumed: its optimizer keeps no count of steps; check its log")
            self._is_resume_checked = True
            return
        made = before.done_before + before.stopped_after
        start.restart_s += max(made - start.done_before, 0) * step_s
        if start.done_before <= before.done_before:
            self._stop_experiment(
                f"the training did not resume where it stopped: {count_noun(made, 'step')} before the restart, "
                f"{start.done_before} after it"
            )

    def _control_us(self, more: Segment) -> float | None:
        times = [s.time_us for s in (*self._segments, more) if s.arm == CONTROL and s.time_us is not None]
        return statistics.median(times) if times else None

    def _build(self, start: _Start, *, failure: str) -> Segment:
        request, arm = self._request, start.arm
        stopped_at = start.stopped_at or time.time()
        step_us = start.times.step_us if start.times else ()
        content = f"{request.model}\0{start.began_at}\0{start.mark}"
        segment = Segment(
            id=hashlib.sha256(content.encode()).hexdigest()[:12],
            model=request.model,
            cluster=request.cluster_name,
            arm=arm.name,
            recommendation=arm.recommendation,
            label=arm.label,
            variables=arm.set_env,
            base_env=request.today,
            order=len(self._segments),
            block=start.block,
            step_us=step_us,
            failure=failure,
            wall_s=time.monotonic() - start.began_s,
            restart_s=start.restart_s,
            slower_s=0.0,
            is_stopped=bool(start.stopped_at),
            created=self._now(),
            place=self._place(),
        )
        control_us = self._control_us(segment)
        if arm.name == CONTROL or not control_us or segment.time_us is None or not start.first_step_at:
            return segment
        share = max(1 - control_us / segment.time_us, 0.0)
        return replace(segment, slower_s=share * max(stopped_at - start.first_step_at, 0.0))

    def _finish(self, start: _Start, code: int) -> str:
        """Store the segment and return the reason for which its arm is out; empty = none.

        A candidate that ends before its measured steps is out; a failure after them is the training's own.
        """
        failure = ""
        is_early = start.times is None and not start.stopped_at and not self._signals & _ENDING
        if start.arm.name != CONTROL and is_early and (code or start.ended_for):
            failure = start.ended_for or f"exit code {code}"
        with self._never_in_the_way():
            segment = self._build(start, failure=failure)
            self._segments = (*self._segments, segment)
            self._store.records.add_segment(segment)
        return failure

    # --- reports ---

    @property
    def _is_measured(self) -> bool:
        return any(segment.step_us for segment in self._segments)

    def _report(self, *, ended: bool = False) -> None:
        """Say the result of the last segment and, where it has changed, of the experiment; store verdicts."""
        with suppress(Exception):
            starts = count_noun(len(self._segments), "start")
            if not ended and (last := self._segments[-1]).time_us is not None:
                cost = f"cost so far {cost_share(self._segments) * 100:.2g} %"
                self._say(
                    f"ncclt: start {len(self._segments)}, {last.arm}: {last.time_us / 1e3:.3g} ms per step; {cost}"
                )
            race = self._race()
            if ended and (race is None or race.conclude() is None):
                why = f": {self._off}" if self._off else ""
                if self._too_short or (self._off and not self._is_measured):
                    self._say(f"ncclt: stopped: {self._too_short or self._off}")
                    return
                self._say(f"ncclt: no result after {starts}{why}; run the same command to try the next arm")
            if race is None:
                return
            decided = {arm: race.verdict(arm).decision for arm in race.arms}
            if ended or decided != self._decided:
                for line in describe_race(race):
                    self._say(f"ncclt: {line}")
            self._decided = decided
            if race.conclude() is not None:
                self._store_verifications(race)

    def _store_verifications(self, race: Race) -> None:
        for name in race.arms:
            arm, verdict = (self._arms or {})[name], race.verdict(name, ended=True)
            launches = tuple(
                StepLaunch(
                    side=Side.BASE if segment.arm == CONTROL else Side.TUNED,
                    order=number,
                    step_us=segment.step_us,
                    failure=segment.failure,
                )
                for number, segment in enumerate(s for s in race.segments if s.arm in (CONTROL, name) and s.block >= 0)
            )
            content = f"{race.model}\0{name}\0{self._request.today}\0{len(launches)}"
            id = hashlib.sha256(content.encode()).hexdigest()[:12]
            if id in {one.id for one in self._store.records.verifications(model=self._request.model)}:
                continue
            revision = "" if self._other_backends else arm.recommendation
            if race.conclude() == (name, verdict):
                revision = self._publish(arm, verdict)
            notes = ["segments of one training, each from the checkpoint of the one before"]
            if self._other_backends:
                notes.append(explain_other_backend(self._other_backends))
            found = Verification(
                id=id,
                cluster=self._request.cluster_name,
                model=self._request.model,
                recommendation=revision,
                argv=words_without_secrets(self._request.argv),
                base_env=self._request.today,
                tuned_env=arm.set_env,
                removed_env=(),
                warmup=self._request.how.warmup,
                steps=self._request.how.steps,
                ranks=0,
                hosts=0,
                launches=launches,
                verdict=verdict,
                notes=tuple(notes),
                created=self._now(),
            )
            self._store.records.add_verification(found)

    def _publish(self, arm: TrainingArm, verdict: Verdict) -> str:
        """Publish the winner, and return the id of its revision; empty = it is not published."""
        workload, cluster = self._workload, self._request.cluster
        if arm.candidate is None or workload is None or cluster is None:
            return ""
        id, line = publish_winner(
            arm.candidate,
            verdict,
            build_study(workload, cluster, evidence=RESTARTS, reason=verdict.reason),
            self._store,
            baseline=dict(self._request.today),
            backend=self._other_backends,
            ranks=self._ranks,
        )
        self._say(f"ncclt: {line}")
        return id


def describe_race(race: Race) -> list[str]:
    """Return the state of an experiment: the result, then one line per arm."""
    cost = f"cost so far {cost_share(race.segments) * 100:.2g} % of {format_duration(_wall_us(race))}"
    concluded = race.conclude()
    measured = count_noun(len(race.segments), "segment")
    if concluded is None:
        first = f"undecided after {measured}; {cost}"
    elif concluded[1] is None:
        first = (
            f"no candidate was faster by {race.min_effect * 100:.3g} % or more in {measured}: "
            f"keeping today's settings; {cost}"
        )
    else:
        first = f"{concluded[0]} wins: {concluded[1].reason}; {cost}"
    return [first, *(f"{arm}: {race.verdict(arm, ended=concluded is not None).reason}" for arm in race.arms)]


def _wall_us(race: Race) -> float:
    return sum(segment.wall_s for segment in race.segments) * 1e6


def _find_workload(store: Store, name: str) -> Workload | None:
    """Return a stored workload; None = the first segment records it."""
    try:
        return store.workloads.get(name)
    except NotFoundError:
        return None


def _select_comparable(segments: Sequence[Segment], place: str) -> tuple[Segment, ...]:
    """Return the segments without blocks of another place."""
    return tuple(one for one in segments if one.block < 0 or one.place == place)


def describe_training(request: RestartRequest, store: Store) -> list[str]:
    """Return the state of the experiment of a training: of its live runs, then of its stored segments."""
    running = [line for state in read_run_states(request.how.directory, request.model) for line in state.describe()]
    segments = tuple(one for one in store.records.segments(request.model) if one.base_env == request.today)
    if not segments:
        return running or ["not started: the first start runs with today's settings and records the workload"]
    arms = tuple(dict.fromkeys(one.arm for one in segments if one.arm != CONTROL))
    labels = {one.arm: one.label for one in segments}
    how, starts = request.how, count_noun(len(segments), "start")
    segments = _select_comparable(segments, segments[-1].place)
    race = Race(model=request.model, arms=arms, segments=segments, min_effect=how.min_effect, blocks=how.blocks)
    if not arms:
        return [*running, f"{starts} ended, all with today's settings"]
    return [*running, f"{starts} ended", *describe_race(race), *(f"{arm} is {labels[arm]}" for arm in arms)]


def select_candidates(
    workload: Workload, cluster: Cluster, store: Store, *, environ: Mapping[str, str]
) -> tuple[Recommendation, ...]:
    """Return the candidates for a training: measured gains, gains of recordings and simulations, then proposals.

    Args:
        workload: as it is stored.
        cluster: sized to the job.
        store: of what was published.
        environ: of this process.
    """
    wanted = Request(
        cluster=cluster.name,
        model=workload.name,
        nodes=cluster.nodes,
        gpus_per_node=cluster.gpus_per_node,
        nccl_version=str(cluster.version),
    )
    tuned = [
        found
        for found in store.recommendations.newest_each(cluster=cluster.name, model=workload.name)
        if has_gain(found) and not found.stale and not wanted.refusal(found.fingerprint)
    ]
    published = [found for found in tuned if found.origin is TimesOrigin.MEASURED][:MOST_CANDIDATES]
    by_plugin, left = find_plugin(environ) is not None, MOST_CANDIDATES - len(published)
    earlier = [found.table.policy for found in tuned if found not in published]
    proposed = propose_candidates(workload, cluster, most=left, by_plugin=by_plugin, earlier=earlier) if left else ()
    return (*published, *proposed)


def plan_arms(
    candidates: Sequence[Recommendation],
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    today: Variables,
    folder: Path,
    say: Callable[[str], None],
) -> tuple[TrainingArm, ...]:
    """Return the arms of candidates, each as `ncclt run` would start it, and write the tables that they need.

    Args:
        candidates: published, or proposed.
        argv: the training's command.
        environ: of this process.
        today: tuning variables that the arms replace.
        folder: that all ranks share.
        say: shows one line: why a candidate is left out.
    """
    inherited = {name: value for name, value in environ.items() if name not in dict(today)}
    plugin = find_plugin(environ)
    plugin = plugin and place_plugin(folder, plugin)
    arms: dict[Variables, TrainingArm] = {today: TrainingArm(name=CONTROL)}
    for found in candidates:
        try:
            plan = plan_tuned_arm(found, argv, environ=inherited, plugin=plugin, folder=folder)
        except NccltError as error:
            say(f"ncclt: {found.id} left out: {error.message}")
            continue
        given = dict(plan.set_env)
        if POLICY_VARIABLE in given and plan.answer is not None:
            write_table(Path(given[POLICY_VARIABLE]), plan.answer.table)
        policy = found.table if plan.form is Form.TABLE else found.variables or found.table
        effect = sorted_variables({n: v for n, v in given.items() if n != "NCCLT_RECOMMENDATION"})
        arm = TrainingArm(
            name=found.id,
            candidate=found,
            label=describe_policy(policy.effective),
            set_env=plan.set_env,
        )
        arms.setdefault(effect, arm)
    return tuple(arm for arm in arms.values() if arm.name != CONTROL)
