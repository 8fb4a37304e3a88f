"""Tune one workload on one cluster: search, confirm, prove, publish."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from typing import Any
from typing import Protocol as Port

from ncclt.core.budget import MAX_BLOCKS, Budget
from ncclt.core.cluster import Cluster
from ncclt.core.plural import count_noun
from ncclt.core.policy import Policy
from ncclt.core.printed_costs import PrintedCosts
from ncclt.core.recommendation import (
    Coverage,
    Decision,
    PolicyVerdict,
    Recommendation,
    Today,
    Verdict,
    recommendation_id,
)
from ncclt.core.setting import DEFAULT
from ncclt.core.study import Arm, Phase, Study, StudyState, Trial, median_scores
from ncclt.core.workload import Workload
from ncclt.deliver.render.delivery import choose_form
from ncclt.errors import StudyStoppedError, UsageError, missing_dependency
from ncclt.measure.testbed import Testbed
from ncclt.measure.trial import list_search_trials, stored_default
from ncclt.nccl.numerics import may_change_order
from ncclt.nccl.p2p_chunk import default_process_wide
from ncclt.prove.confirm import choose_arms, confirm, confirmed_times
from ncclt.prove.interleave import Proof
from ncclt.prove.payback import communication_effect
from ncclt.prove.proof import build_policy_verdict, judge_arm, measure_coverage, refuse_other_bits, require_coverage
from ncclt.prove.study_summary import MessageRow, StudySummary, build_message_rows, summarize_study
from ncclt.prove.verdict import Pairs, keep_default
from ncclt.search.assemble import Times
from ncclt.search.loop import Progress, Search, SearchEnd
from ncclt.search.named_sampler import named_sampler
from ncclt.search.optuna_study import OptunaStudy
from ncclt.search.optuna_tables import record_proof, record_verdict
from ncclt.search.space import SearchSpace, build_space, count_excluded, describe_space, process_wide_ladders
from ncclt.store.journal import StudyTrialLog
from ncclt.store.leases import this_worker
from ncclt.store.store import Store

_POLL_S = 0.5
"""Pause between two looks for the last trials of other workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """Tuning request.

    Attributes:
        workload: as it is kept; `tune` places it on the cluster.
        budget: what is searched and proven.
        printed_costs: NCCL's own cost tables of this cluster, to begin the search from; None = our estimate, or
            what the stored study began from.

    Raises:
        UsageError: the budget does not fit the workload, or names a sampler that is not there.
    """

    workload: Workload
    budget: Budget
    printed_costs: PrintedCosts | None = None

    def __post_init__(self) -> None:
        named_sampler(self.budget.sampler)
        if self.budget.steps is not None and self.workload.provenance.whole_file:
            raise UsageError(
                f"--steps {self.budget.steps} needs a workload of known length: {self.workload.name} does not say how "
                "many steps it holds",
                hint="import it again with `ncclt profile import --steps N`, or leave out --steps",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """Result of a run of `tune`.

    Attributes:
        study: with its state.
        trials: all trials of the study, earlier runs included.
        resumed: how many of them are from earlier runs.
        stop: why the search ended.
        recommendation: None when the user interrupted before the proof was complete, or another worker does the rest.
        left: the search is over, and another worker of the same study does confirmation and proof.
        finished: the study was already finished, and nothing was launched.
        messages: one row per message, most time first; empty without a recommendation.
        notes: remarks for the reader: uncovered messages, assumptions.
        exhaustive: speed-ups of the best recorded policy and of the published one; None = nothing was recorded.
        source: option by which a command finds the store of the study; empty where it needs none.
    """

    study: Study
    trials: tuple[Trial, ...]
    resumed: int
    stop: str
    recommendation: Recommendation | None
    messages: tuple[MessageRow, ...]
    notes: tuple[str, ...]
    left: bool = False
    finished: bool = False
    exhaustive: tuple[float, float] | None = None
    source: str = ""

    @property
    def verdict(self) -> Verdict | None:
        """Return the verdict on the per-size policy; None without a recommendation."""
        return None if self.recommendation is None else self.recommendation.table.verdict

    def summarize(
        self, *, source: str = "", build: bool = False, steps_per_day: int | None = None
    ) -> StudySummary | None:
        """Return the summary of the study, None without a recommendation.

        Args:
            source, build: as for `choose_form`.
            steps_per_day: as for `summarize_study`.
        """
        if self.recommendation is None or self.left:
            return None
        return summarize_study(
            self.study,
            self.trials,
            self.recommendation,
            use=choose_form(self.recommendation, source=source, build=build),
            steps_per_day=steps_per_day,
            exhaustive=self.exhaustive,
        )

    def __str__(self) -> str:
        """Return the result in five lines."""
        headline, lines = self._headline_and_lines()
        return "\n".join([headline, *(f"  {label}: {sentence}" for label, sentence in lines)])

    def _headline_and_lines(self) -> tuple[str, list[tuple[str, str]]]:
        summary = self.summarize(source=self.source)
        if summary is None or self.recommendation is None:
            name = f"{self.study.workload.name} on {self.study.cluster.name}"
            todo = "another worker of this study finishes it" if self.left else "call tune() again to resume"
            mark = f" ({self.study.label})" if self.study.label else ""
            return f"no verdict on {name}{mark}", [
                ("Reason", self.stop),
                ("Trials", str(len(self.trials))),
                ("Next", todo),
                ("Details", f"ncclt studies show {self.study.id}{self.source}"),
            ]
        if self.recommendation.is_searched_enough:
            budget = f"blocks={2 * max(self.recommendation.table.verdict.blocks, MAX_BLOCKS)}"
        else:
            budget = f"trials={2 * Budget().trials}"
        lines = summary.lines(again=f"call tune() again with Budget({budget})", details=True)
        ranked = sorted(lines, key=lambda line: _IMPORTANCE.index(line[0]))[: _LINES - 1]
        return summary.headline, [line for line in lines if line in ranked]

    def _repr_html_(self) -> str:
        """Return the result for a notebook: its five lines, and a table of the messages."""
        headline, lines = self._headline_and_lines()
        facts = "".join(f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>" for label, text in lines)
        head = "".join(f"<th>{name}</th>" for name in ("message", "calls", "default µs", "policy µs", "setting"))
        rows = "".join(
            f"<tr><td>{escape(row.calls.message.label)}</td><td>{row.calls.calls_per_step:g}</td>"
            f"<td>{row.default_us:.1f}</td><td>{row.tuned_us:.1f}</td><td>{escape(row.setting.label)}</td></tr>"
            for row in self.messages
        )
        messages = f"<table><tr>{head}</tr>{rows}</table>" if rows else ""
        return f"<p><b>{escape(headline)}</b></p><table>{facts}</table>{messages}"

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with one row per message, most time first; empty without a recommendation.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ModuleNotFoundError as error:
            raise missing_dependency("pandas") from error
        label = {"label": self.study.label}  # a table without it would pass for a measured one
        return pandas.DataFrame([row.to_document() | {"setting": row.setting.label} | label for row in self.messages])


_LINES = 5
"""Lines of a result as text."""

_IMPORTANCE = (
    "Reason",
    "Today",
    "Numerics",
    "Saves",
    "Worth",
    "Use",
    "Continue",
    "Next",
    "Warning",
    "Searched",
    "Exhaustive search",
    "Details",
    "Cost",
    "Page",
    "Limit",
)
"""Labels of `StudySummary.lines`, the most important first."""


class Watcher(Port):
    """Watcher of a study's progress."""

    def opened(self, study: Study, resumed: int) -> None:
        """Called when the study is open; `resumed` trials of it are stored."""

    def searched(self, progress: Progress) -> None:
        """Called after each launch of the search."""

    def confirmed(self, trial: Trial, done: int, total: int) -> None:
        """Called after each launch of the confirmation."""

    def proved(self, trial: Trial, blocks: int, pairs: Pairs | None) -> None:
        """Called after each launch of the proof, with the whole blocks before it and their pairs, None at first."""


def build_study(request: TuneRequest, testbed: Testbed, workload: Workload, *, cluster: Cluster | None = None) -> Study:
    """Return the study that a request means; the same request means the same study.

    Args:
        workload: the request's workload, placed and cut to what the testbed can measure.
        cluster: what is measured; None = the testbed's, whose driver is known only where its nodes were asked.
    """
    cluster = cluster or testbed.runner.cluster
    name = request.budget.study or _default_name(request, testbed, workload, cluster)
    return Study(
        id=hashlib.sha256(name.encode()).hexdigest()[:12],
        name=name,
        cluster=cluster,
        workload=workload,
        launcher=testbed.runner.name,
        simulated=testbed.runner.simulated,
        process_wide=_process_wide(request, testbed, workload, cluster),
        seed=request.budget.seed,
        state=StudyState.RUNNING,
        printed_costs=request.printed_costs,
        sampler=request.budget.sampler,
        today=() if testbed.inert else testbed.today,
        deterministic=request.budget.deterministic,
        way=testbed.way,
    )


def _default_name(request: TuneRequest, testbed: Testbed, workload: Workload, cluster: Cluster) -> str:
    budget = request.budget
    # Times under another driver, or of persistent instead of fresh ranks, are not comparable: another study.
    place = f"{cluster.fingerprint().digest()}{cluster.driver}"
    today = "" if testbed.inert else " ".join(f"{name}={value}" for name, value in testbed.today)
    names = ",".join(_process_wide(request, testbed, workload, cluster))
    order = "+deterministic" if budget.deterministic else ""
    content = f"{workload.digest()}{place}{names}{testbed.way}{budget.sampler}{today}{order}"
    mark = hashlib.sha256(content.encode()).hexdigest()[:6]
    size, seed = f"{cluster.nodes}x{cluster.gpus_per_node}", f"seed{budget.seed}" if budget.seed else ""
    words = (workload.name, cluster.name, size, f"nccl{cluster.nccl_version}", testbed.runner.name, mark)
    return "-".join(filter(None, (*words, budget.sampler.partition(":")[2].partition("(")[0], seed)))


def _process_wide(request: TuneRequest, testbed: Testbed, workload: Workload, cluster: Cluster) -> tuple[str, ...]:
    names = request.budget.process_wide
    if testbed.by_model and names:
        process_wide_ladders(names, cluster, beside_compute=testbed.beside_compute)  # an unknown name is named first
        raise UsageError(
            f"NCCL's cost model has no term for {', '.join(f'NCCL_{name}' for name in sorted(names))}",
            hint="leave out --process-wide, or measure on the cluster",
        )
    messages = (c.message for c in workload.messages)
    default = () if testbed.by_options or testbed.by_model else default_process_wide(cluster, messages)
    chosen = default if names is None else names
    if not request.budget.deterministic:
        return chosen
    if names is not None and (reordering := [name for name in names if may_change_order(name)]):
        raise UsageError(
            f"--deterministic: {', '.join(reordering)} may change the order of additions in every reduction of the "
            "process",
            hint="leave it out of --process-wide",
        )
    return tuple(name for name in chosen if not may_change_order(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneContext:
    """One run of a study: its data, and its ports to the outside.

    Attributes:
        request, testbed, store, watcher, interrupted, clock, now: as `tune` takes them.
        study: as it is stored.
        workload: placed on the cluster, and cut to what can be measured there.
        space: of the search.
        trial_log: of the study.
        resumed: trials that were stored before this run.
        notes: caveats for the reader of the result.
    """

    request: TuneRequest
    testbed: Testbed
    store: Store
    study: Study
    workload: Workload
    space: SearchSpace
    trial_log: StudyTrialLog
    resumed: int
    notes: tuple[str, ...]
    watcher: Watcher
    interrupted: Callable[[], str]
    clock: Callable[[], float]
    now: Callable[[], str]

    @property
    def min_effect(self) -> float:
        """Return the smallest gain of communication time that justifies a change, as a share."""
        return communication_effect(self.study.workload, self.request.budget.min_effect)

    def result(self, *, stop: str, left: bool = False) -> TuneResult:
        """Return the result of a run that ends without a verdict."""
        return TuneResult(
            study=self.store.studies.get(self.study.id),
            trials=tuple(self.trial_log.trials()),
            resumed=self.resumed,
            stop=stop,
            recommendation=None,
            messages=(),
            notes=self.notes,
            left=left,
        )


def tune(
    request: TuneRequest,
    testbed: Testbed,
    store: Store,
    *,
    watcher: Watcher,
    interrupted: Callable[[], str],
    clock: Callable[[], float],
    now: Callable[[], str],
) -> TuneResult:
    """Run or resume a study to its verdict and publish the result; a finished one gives its result again.

    Args:
        request: what to tune and how much it may cost.
        testbed: where trials run, and which settings can be tried there.
        interrupted: why to finish the running trial, save and stop; empty = go on.
        clock: monotonic seconds.
        now: ISO time.

    Raises:
        UsageError: the request does not fit the cluster or the stored study of this name.
        StudyStoppedError: the default fails, or too many launches fail alike; what was measured is kept.
    """
    workload, notes = testbed.cut(request.workload)
    # Whatever can be refused is refused before anything is stored.
    if request.printed_costs is not None:
        request.printed_costs.require(testbed.runner.cluster)
    study = build_study(request, testbed, workload)
    space = build_space(testbed, workload, study.process_wide, deterministic=study.deterministic)
    if count_excluded(testbed, workload, study.process_wide, deterministic=study.deterministic):
        described = describe_space(testbed, workload, study.process_wide, deterministic=study.deterministic)
        notes += (f"search space: {described}",)
    study = store.studies.open(study, worker=this_worker())
    if study.printed_costs is not None:
        notes += (study.printed_costs.note(study.cluster),)
    if not request.budget.more and (published := _find_published(request, store, study)) is not None:
        return _load_finished(store, testbed, study, published, notes)
    with StudyTrialLog(store, study, now) as trial_log:
        return _run(
            TuneContext(
                request=request,
                testbed=testbed,
                store=store,
                study=study,
                workload=workload,
                space=space,
                trial_log=trial_log,
                resumed=len(trial_log.trials()),
                notes=notes,
                watcher=watcher,
                interrupted=interrupted,
                clock=clock,
                now=now,
            )
        )


def _run(context: TuneContext) -> TuneResult:
    """Search, confirm, prove and publish."""
    set_state = context.store.studies.set_state
    try:
        end = _search(context)
        if not end.interrupted and not _may_end(context.trial_log):
            return context.result(stop=end.reason, left=True)
        proof = _confirm_and_prove(context)
        why = context.interrupted()
        if end.interrupted or why or proof is None:
            stop = why or end.reason
            set_state(context.study.id, StudyState.INTERRUPTED, stop)
            return context.result(stop=stop)
        return _publish(context, *proof, end)
    except StudyStoppedError as error:
        # Without this the study would be shown as running; with other workers it still is.
        if context.trial_log.is_alone():
            set_state(context.study.id, StudyState.INTERRUPTED, error.message)
        raise


def _search(context: TuneContext) -> SearchEnd:
    """Open the run and search until the budget ends or no further gain is expected."""
    budget, testbed, trial_log = context.request.budget, context.testbed, context.trial_log
    if budget.more:  # an explicit request: only time and cost end it earlier
        budget = replace(budget, trials=len(list_search_trials(trial_log)) + budget.more, patience=0)
    testbed.require_alike(trial_log.trials())
    if default := stored_default(trial_log):
        testbed.calibrate(default.result.wall_s, {m.message: m.time_us for m in default.result.measurements})
    context.watcher.opened(context.study, context.resumed)
    context.store.studies.set_state(context.study.id, StudyState.RUNNING, "")
    opened = OptunaStudy(
        context.space,
        context.study,
        sampler=named_sampler(context.study.sampler),
        storage_url=context.store.optuna_url,
        lock=context.store.alone,
    )
    with opened as optuna_study, testbed.awake():
        search = Search(
            workload=context.workload,
            trial_log=trial_log,
            optuna_study=optuna_study,
            budget=budget,
            clock=context.clock,
            interrupted=context.interrupted,
            watch=context.watcher.searched,
            padded=testbed.find_padded(context.workload),
        )
        return search.run(testbed.searching, kill=testbed.kill, only_worker=trial_log.is_alone())


def _confirm_and_prove(context: TuneContext) -> tuple[Times, dict[Arm, Policy], str] | None:
    """Launch the finalists again, then default and policies interleaved; return times and arms, None if interrupted."""
    testbed, workload, trial_log = context.testbed, context.workload, context.trial_log
    budget, interrupted, min_effect = context.request.budget, context.interrupted, context.min_effect
    times = confirm(
        testbed.runner,
        workload,
        trial_log,
        with_variables=budget.prove_variables,
        min_effect=min_effect,
        interrupted=interrupted,
        watch=context.watcher.confirmed,
    )
    policies, why = {Arm.DEFAULT: Policy()}, testbed.inert
    if not testbed.inert:
        policies, why = choose_arms(
            times,
            workload,
            testbed.runner,
            min_effect=min_effect,
            with_variables=budget.prove_variables,
            today=testbed.by_today is not None,
            deterministic=context.study.deterministic,
        )
    proof = Proof(
        runner=testbed.runner,
        workload=workload,
        trial_log=trial_log,
        policies=policies,
        runners=testbed.by_arm,
        blocks=budget.blocks,
        min_effect=min_effect,
        seed=f"{context.study.id}|{context.study.seed}",
        covers=testbed.can_measure,
        interrupted=interrupted,
        watch=context.watcher.proved,
    )
    complete = proof.run(anew=bool(budget.more))
    record_proof(context.store.optuna_url, context.study, context.space, trial_log.trials())
    return (times, policies, why) if complete else None


def _publish(context: TuneContext, times: Times, policies: dict[Arm, Policy], why: str, end: SearchEnd) -> TuneResult:
    """Judge the proof, publish what it says, and end the study."""
    store, workload, study = context.store, context.workload, context.study
    trials = tuple(context.trial_log.trials())
    earlier = store.recommendations.find(study=study.id)
    coverage = measure_coverage(
        context.space.anchors(),
        trials,
        remaining_gain=end.expected_gain,
        converged=end.converged or any(r.coverage is not None and r.coverage.converged for r in earlier),
    )
    default_us, min_effect = median_scores(trials)[DEFAULT], context.min_effect
    # No search could find more where no setting changes anything.
    needed = None if context.testbed.inert else coverage
    deliveries = {
        arm: build_policy_verdict(arm, policy, trials, workload, min_effect=min_effect)
        for arm, policy in policies.items()
        if arm not in (Arm.DEFAULT, Arm.TODAY)
    }
    for arm, form in deliveries.items():
        if refused := refuse_other_bits(arm, form.policy, trials, version=study.cluster.version, min_effect=min_effect):
            deliveries[arm] = PolicyVerdict(policy=Policy(), verdict=refused)
    tried = len({t.setting for t in trials if t.tries_setting and not t.setting.is_default})
    failed = "" if tried == coverage.settings else f" ({tried} tried)"
    why = why or (
        f"none of {count_noun(coverage.settings, 'setting')} beats the NCCL default on any message{failed}"
        if coverage.settings
        else "no other setting was measured"
    )
    deliveries.setdefault(
        # Where variables alone were proven, they are the result, and a table of the same rules says no more.
        Arm.TABLE,
        deliveries.get(Arm.VARIABLES)
        or PolicyVerdict(policy=Policy(), verdict=keep_default(default_us, why=why, min_effect=min_effect)),
    )
    judged = {arm: replace(form, verdict=require_coverage(form.verdict, needed)) for arm, form in deliveries.items()}
    recommendation = _recommendation(
        context, judged[Arm.TABLE], judged.get(Arm.VARIABLES), trials=len(trials), coverage=needed
    )
    # The same trials prove nothing new: a stale recommendation stays stale.
    published = [r for r in earlier if r.id == recommendation.id]
    recommendation = published[0] if published else store.revisions.publish(recommendation)
    record_verdict(store.optuna_url, study, recommendation.table.verdict)
    store.studies.set_state(study.id, StudyState.DONE, end.reason)
    return replace(
        context.result(stop=end.reason),
        trials=trials,
        recommendation=recommendation,
        messages=build_message_rows(recommendation, trials, workload, times.default),
        exhaustive=_search_exhaustively(context.testbed, study, recommendation),
    )


def _recommendation(
    context: TuneContext,
    table: PolicyVerdict,
    variables: PolicyVerdict | None,
    *,
    trials: int,
    coverage: Coverage | None,
) -> Recommendation:
    """Return the recommendation of the study after so many trials, unpublished."""
    study, workload, source_digest = context.study, context.study.workload, context.request.workload.digest()
    return Recommendation(
        id=recommendation_id(study.id, table, variables, source_digest=source_digest, trials=trials),
        revision=0,
        study=study.id,
        cluster=study.cluster.name,
        model=workload.name,
        workload_digest=workload.digest(),
        collectives=workload.collectives,
        fingerprint=study.cluster.fingerprint(),
        table=table,
        variables=variables,
        simulated=study.simulated,
        launcher=study.launcher,
        created=context.now(),
        source_digest=source_digest,
        dtypes=workload.dtypes,
        groups=workload.groups,
        today=_judge_today(context),
        recorded="" if study.simulated else study.label,
        coverage=coverage,
        deterministic=study.deterministic,
    )


def _judge_today(context: TuneContext) -> Today | None:
    """Return the tuning of today, with the verdict of the default against it; None = the job sets none."""
    if context.testbed.by_today is None or context.testbed.inert:
        return None
    trials = context.trial_log.trials()
    verdict = judge_arm(
        Arm.DEFAULT, Policy(), trials, context.workload, min_effect=context.min_effect, baseline=Arm.TODAY
    )
    return Today(variables=context.testbed.today, default=verdict)


def find_finished(request: TuneRequest, testbed: Testbed, store: Store) -> TuneResult | None:
    """Return the result of the finished study that a request means, without asking any node; None = there is none.

    Args:
        testbed: not asked, so it does not know the driver of its nodes: the newest study that fits counts.
    """
    workload, notes = testbed.cut(request.workload)
    cluster = testbed.runner.cluster
    for summary in store.studies.page(limit=500, cluster=cluster.name, model=workload.name).items:
        study = summary.study
        wanted = build_study(request, testbed, workload, cluster=replace(cluster, driver=study.cluster.driver))
        is_wanted = (
            wanted.id == study.id and wanted.deterministic == study.deterministic and study.way in (None, wanted.way)
        )
        if is_wanted and not request.budget.more:
            published = _find_published(request, store, study)
            if published is not None:
                return _load_finished(store, testbed, study, published, notes)
    return None


def _find_published(request: TuneRequest, store: Store, study: Study) -> Recommendation | None:
    """Return the newest recommendation of a finished study if it answers exactly this request.

    What else could differ makes another study, or is refused when the study is opened: workload as it is measured,
    cluster with its driver, parameters, seed, cost tables, and how trials run.
    """
    newest = next(iter(store.recommendations.find(study=study.id)), None)
    if study.state is not StudyState.DONE or newest is None:
        return None
    verdict = newest.table.verdict
    same_source = newest.source_digest == request.workload.digest()
    undecided, enough = verdict.decision is Decision.UNDECIDED, newest.is_searched_enough
    over = newest.table.over_today
    open_over_today = over is not None and over.decision is Decision.UNDECIDED and not newest.table.beats_today
    blocks_help = open_over_today or (undecided and (verdict.blocks > 0 or enough))
    more_blocks = blocks_help and verdict.blocks < request.budget.blocks
    launched = sum(t.phase is Phase.SEARCH for t in store.trials.outline(study.id)) if undecided and not enough else 0
    more_trials = undecided and not enough and launched < request.budget.trials
    unproven = request.budget.prove_variables and newest.variables is None
    as_asked = same_source and verdict.min_effect == communication_effect(study.workload, request.budget.min_effect)
    return newest if as_asked and not (more_blocks or more_trials or unproven) else None


def _search_exhaustively(testbed: Testbed, study: Study, recommendation: Recommendation) -> tuple[float, float] | None:
    if testbed.landscape is None or study.deterministic:  # the best recorded policy may change the order of additions
        return None
    return testbed.landscape.speedups(study.workload, recommendation.table.policy)


def _load_finished(
    store: Store, testbed: Testbed, study: Study, published: Recommendation, notes: tuple[str, ...]
) -> TuneResult:
    """Return the stored result of a finished study."""
    trials = store.trials.find(study.id)
    return TuneResult(
        study=study,
        trials=trials,
        resumed=len(trials),
        stop=study.reason,
        recommendation=published,
        finished=True,
        messages=build_message_rows(published, trials, study.workload, confirmed_times(trials).default),
        exhaustive=_search_exhaustively(testbed, study, published),
        notes=notes,
    )


def _may_end(trial_log: StudyTrialLog) -> bool:
    """Claim the end of the study and wait for the other workers' last trials; false = another worker has it."""
    if not trial_log.may_end():
        return False
    while trial_log.refresh():
        time.sleep(_POLL_S)
    return True
