"""Tune several workloads on one cluster at once: their launches are shared, their policies and verdicts are their own.

Each workload has a study of its own, as `pipeline.tune` makes it. One launch measures the messages of all and is a
trial of each, so everything that reads a study needs to know nothing of the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from ncclt.core.policy import Policy
from ncclt.core.study import Arm, Phase, Study, StudyState
from ncclt.core.workload import Workload
from ncclt.errors import StudyStoppedError, UsageError
from ncclt.measure.shared_log import Share, SharedTrialLog, union_of
from ncclt.measure.testbed import Testbed
from ncclt.measure.trial import measure_default
from ncclt.pipeline.tune import (
    TuneContext,
    TuneRequest,
    TuneResult,
    Watcher,
    finished,
    publish,
    published_of,
    run_search,
    study_of,
)
from ncclt.prove.confirm import Candidates, candidates, confirm
from ncclt.prove.interleave import applies, prove
from ncclt.prove.probes import probes_of
from ncclt.prove.together import Member, prove_together
from ncclt.search.assemble import Times
from ncclt.search.earlier import EarlierStudy, begin
from ncclt.search.joined import joined, own_part
from ncclt.search.posterior import believed
from ncclt.search.space import space_of
from ncclt.store.journal import StudyTrialLog
from ncclt.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyResult:
    """The outcome of one run for several workloads.

    Attributes:
        results: one for each workload, in the order in which they were asked for.
        launches: of all studies together, each counted once, over all runs.
    """

    results: tuple[TuneResult, ...]
    launches: int

    @property
    def apart(self) -> int:
        """Return the launches of all studies, each counted for every study that it served."""
        return sum(len(result.trials) for result in self.results)


def studies_of(requests: Sequence[TuneRequest], testbed: Testbed) -> tuple[Study, ...]:
    """Return the studies that the requests mean together; the same set of workloads means the same studies.

    Args:
        requests: one for each workload, alike but for it.
        testbed: where.

    Raises:
        UsageError: there are fewer than two workloads, or one is named twice.
        LandscapeError: nothing of a workload can be measured there.
    """
    names = [request.workload.name for request in requests]
    if len(names) < 2 or len(set(names)) < len(names):
        raise UsageError(
            f"--models needs two or more different workloads, not {', '.join(names) or 'none'}",
            hint="`ncclt profile list` shows the names; one workload alone is tuned by --model",
        )
    cut = [testbed.cut(request.workload)[0] for request in requests]
    among = hashlib.sha256("".join(sorted(workload.digest() for workload in cut)).encode()).hexdigest()[:6]
    return tuple(_study(request, testbed, workload, among) for request, workload in zip(requests, cut, strict=True))


def _study(request: TuneRequest, testbed: Testbed, workload: Workload, among: str) -> Study:
    if request.effort.study:
        named = replace(request.effort, study=f"{request.effort.study}-{workload.name}")
        request = replace(request, effort=named)
    return study_of(request, testbed, workload, among=among)


def shared_study(studies: Sequence[Study]) -> Study:
    """Return what the studies search together, as one that is not stored: the messages of all."""
    name = "+".join(study.name for study in studies)
    return replace(
        studies[0], id=hashlib.sha256(name.encode()).hexdigest()[:12], name=name,
        workload=union_of([study.workload for study in studies]),
    )  # fmt: skip


def tune_models(
    requests: Sequence[TuneRequest],
    testbed: Testbed,
    store: Store,
    *,
    watcher: Watcher,
    interrupted: Callable[[], str],
    clock: Callable[[], float],
    now: Callable[[], str],
) -> ManyResult:
    """Run or resume the studies of several workloads to their verdicts and publish each; see `pipeline.tune.tune`.

    Args:
        requests: one for each workload, alike but for it.
        testbed, store, watcher, interrupted, clock, now: as `tune` takes them.

    Raises:
        UsageError: the requests do not fit the cluster or the stored studies, or another process runs them now.
        StudyStoppedError: the default fails, or too many launches fail alike; what was measured is kept.
    """
    request = requests[0]
    studies = [*studies_of(requests, testbed)]
    if request.printed_costs is not None:
        request.printed_costs.require(testbed.runner.cluster)
    studies = [store.open_study(study) for study in studies]
    notes = [_notes(r, testbed, studies) for r in requests]
    done = [published_of(r, store, study) for r, study in zip(requests, studies, strict=True)]
    if not request.effort.more and all(found is not None for found in done):
        again = [finished(store, s, f, n) for s, f, n in zip(studies, done, notes, strict=True) if f is not None]
        return _together(again)
    sources: tuple[EarlierStudy, ...] = ()
    if request.effort.warm and not request.effort.sampler:
        studies[0], sources = begin(store, studies[0], launched=testbed.is_launched)
        if not any(store.trial_page(study.id, limit=1) for study in studies[1:]):
            studies[1:] = [store.keep_sources(s.id, studies[0].begun_from, again=False) for s in studies[1:]]
    whole = shared_study(studies)
    space = space_of(testbed, whole.workload, request.effort.process_wide)
    with ExitStack() as stack:
        logs = [stack.enter_context(StudyTrialLog(store, study, now)) for study in studies]
        if not all(log.is_alone() for log in logs):
            raise UsageError(
                "another process runs these studies; one of several workloads has one worker at a time",
                hint="wait for it; --parallel measures several settings at once",
            )
        contexts = [
            TuneContext(
                request=r, testbed=testbed, store=store, study=study, sources=sources, workload=study.workload,
                space=space, trial_log=log, resumed=len(log.trials()), notes=n,
                watcher=watcher, interrupted=interrupted, clock=clock, now=now,
            )
            for r, study, log, n in zip(requests, studies, logs, notes, strict=True)
        ]  # fmt: skip
        try:
            return _run(contexts, replace(contexts[0], study=whole, workload=whole.workload))
        except StudyStoppedError as error:
            for study in studies:
                store.set_state(study.id, StudyState.INTERRUPTED, error.message)
            raise


def _run(contexts: Sequence[TuneContext], whole: TuneContext) -> ManyResult:
    """Search for all, confirm for all, prove what is worth it, and publish for each."""
    testbed, effort, studies = whole.testbed, whole.request.effort, [context.study for context in contexts]
    shared = SharedTrialLog([Share(trial_log=c.trial_log, workload=c.workload) for c in contexts])
    shared.mend(testbed.searching[0])
    default = measure_default(testbed.searching[0], shared.workload, shared)
    shared.weigh({m.message: m.time_us for m in default.result.measurements})
    whole = replace(whole, workload=shared.workload)
    end = run_search(whole, shared, studies, alone=lambda: True)
    times = confirm(
        testbed.runner, shared.workload, shared,
        parts=[context.workload for context in contexts],
        with_variables=effort.prove_variables, min_effect=effort.min_effect,
        interrupted=whole.interrupted, watch=whole.watcher.confirmed,
    )  # fmt: skip
    found = [_worth_proving(context, times, shared.workload) for context in contexts]
    complete = _prove(contexts, found, times, whole)
    why = whole.interrupted()
    if end.interrupted or why or not complete:
        stop = why or end.reason
        for study in studies:
            whole.store.set_state(study.id, StudyState.INTERRUPTED, stop)
        return _together([context.result(stop=stop) for context in contexts])
    return _together([publish(c, times, f, end.reason) for c, f in zip(contexts, found, strict=True)])


def _worth_proving(context: TuneContext, times: Times, among: Workload) -> Candidates:
    testbed, effort = context.testbed, context.request.effort
    if testbed.inert:
        return Candidates(policies={Arm.DEFAULT: Policy()}, why=testbed.inert)
    return candidates(
        times, context.workload, testbed.runner,
        min_effect=effort.min_effect, with_variables=effort.prove_variables, among=among,
    )  # fmt: skip


def _prove(contexts: Sequence[TuneContext], found: list[Candidates], times: Times, whole: TuneContext) -> bool:
    """Prove every policy, together where one launch applies the rules of all; return whether the proof is complete.

    Policies with other process-wide parameters need launches of their own: one process has one value of each. So do
    variables, and sums of launches.
    """
    runner, effort = whole.testbed.runner, whole.request.effort
    expected = believed(times, whole.workload, runner.cluster)
    groups: dict[object, list[int]] = {}
    for index, candidate in enumerate(found):
        table = candidate.policies.get(Arm.TABLE)
        is_shared = table is not None and len(candidate.policies) == 2 and applies(runner, table)
        groups.setdefault(table.parameters if table and is_shared else index, []).append(index)
    for group in groups.values():
        left: Sequence[int] | None = group
        if len(group) > 1:
            workloads = [contexts[index].workload for index in group]
            policies = [found[index].policies[Arm.TABLE] for index in group]
            table = joined(policies, workloads, expected, version=runner.cluster.version)
            for index, workload in zip(group, workloads, strict=True):
                own = {Arm.DEFAULT: Policy(), Arm.TABLE: own_part(table, workload)}
                found[index] = replace(found[index], policies=own)
            if applies(runner, table):
                left = _prove_group(contexts, found, group, table, whole)
        anew = bool(effort.more) or left is not group
        if left is None or not all(_prove_alone(contexts[i], found[i], whole, anew=anew) for i in left):
            return False
    return True


def _prove_group(
    contexts: Sequence[TuneContext],
    found: Sequence[Candidates],
    group: Sequence[int],
    table: Policy,
    whole: TuneContext,
) -> list[int] | None:
    """Prove several studies by the same launches; return those for which it failed, None if it was cut off.

    Whose rules made a launch fail is not known, so each is proven alone then.
    """
    effort = whole.request.effort
    members = [
        Member(
            trial_log=contexts[i].trial_log, workload=contexts[i].workload, policy=policy,
            probes=probes_of(policy, contexts[i].workload, covers=whole.testbed.can_measure),
        )
        for i in group
        for policy in (found[i].policies[Arm.TABLE],)
    ]  # fmt: skip
    complete = prove_together(
        whole.testbed.runner, members, table,
        blocks=effort.blocks, min_effect=effort.min_effect, anew=bool(effort.more), seed=_seed(whole),
        interrupted=whole.interrupted, watch=whole.watcher.proved,
    )  # fmt: skip
    return [i for i, member in zip(group, members, strict=True) if member.failed] if complete else None


def _prove_alone(context: TuneContext, found: Candidates, whole: TuneContext, *, anew: bool) -> bool:
    effort, testbed = context.request.effort, context.testbed
    return prove(
        testbed.runner, context.workload, context.trial_log, found.policies,
        by_variables=testbed.by_variables, blocks=effort.blocks, min_effect=effort.min_effect,
        anew=anew, seed=_seed(whole), covers=testbed.can_measure,
        interrupted=context.interrupted, watch=context.watcher.proved,
    )  # fmt: skip


def _seed(whole: TuneContext) -> str:
    return f"{whole.study.id}|{whole.study.seed}"


def _notes(request: TuneRequest, testbed: Testbed, studies: Sequence[Study]) -> tuple[str, ...]:
    _, notes = testbed.cut(request.workload)
    others = ", ".join(s.workload.name for s in studies if s.workload.name != request.workload.name)
    return (*notes, f"the launches of this study also measured the messages of {others}")


def _together(results: Sequence[TuneResult]) -> ManyResult:
    """Return the results with the number of launches, each counted once for all studies that it served.

    Search and confirmation served all. A launch of a proof has the same start and duration in each study.
    """
    before = max(sum(t.phase is not Phase.VERIFY for t in result.trials) for result in results)
    proofs = {
        (t.started, t.arm, t.block, t.result.wall_s, t.policy is None and t.setting)
        for result in results
        for t in result.trials
        if t.phase is Phase.VERIFY
    }
    return ManyResult(results=tuple(results), launches=before + len(proofs))
