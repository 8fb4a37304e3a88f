"""Confirmation: what the search considers best is launched again before a policy is built from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ncclt.core.cluster import Cluster
from ncclt.core.policy import Policy
from ncclt.core.study import Arm, Phase, Trial
from ncclt.core.trial import Outcome, Runner
from ncclt.core.workload import Workload
from ncclt.measure.trial import TrialLog, launch
from ncclt.nccl.compile import compile_policy
from ncclt.prove.collapse import collapse
from ncclt.search.assemble import Times, assemble, collect_times, finalists

CONFIRMED_LAUNCHES = 3
"""Launches of a setting, search included, that make its times trustworthy enough for a policy.

The best of many noisy trials is partly the luckiest one; after two more launches its median is realistic.
"""

_ROUNDS = 3


def confirm(
    runner: Runner,
    workload: Workload,
    trial_log: TrialLog,
    *,
    interrupted: Callable[[], str],
    watch: Callable[[Trial, int, int], None],
) -> Times:
    """Launch the finalists until they are confirmed; return the times of everything measured so far.

    New finalists may come up when a lucky one falls back, so there are up to three rounds; what is still unconfirmed
    then does not enter the policy. If persistent ranks did the search, only launches of fresh ones count from here on,
    the default's too: both sides of a comparison must be measured in the same way.

    Args:
        runner: where trials run.
        workload: placed.
        trial_log: where trials are kept.
        interrupted: called before every launch; returns why to stop, empty = continue.
        watch: called after every launch with the trial, launches done and planned in this round.
    """
    version = runner.cluster.version
    for _ in range(_ROUNDS):
        informative = _informative(trial_log.trials())
        launches = Counter(t.setting for t in _fresh(informative) if t.result.outcome is Outcome.OK)
        pending = [
            setting
            for setting in finalists(collect_times(informative), workload, version=version)
            for _ in range(CONFIRMED_LAUNCHES - launches[setting])
        ]
        for number, setting in enumerate(pending, start=1):
            if interrupted():
                break
            watch(launch(runner, workload, trial_log, setting, phase=Phase.CONFIRM), number, len(pending))
        if not pending or interrupted():
            break
    return confirmed_times(trial_log.trials())


def confirmed_times(trials: Sequence[Trial]) -> Times:
    """Return the times measured by search and confirmation, from all trials of a study."""
    return collect_times(_alike(_informative(trials)))


def _alike(trials: Sequence[Trial]) -> Sequence[Trial]:
    """Return the trials that may be compared: those of fresh ranks, or all while the default has none of these."""
    fresh = _fresh(trials)
    return fresh if any(t.setting.is_default and t.result.outcome is Outcome.OK for t in fresh) else trials


def _fresh(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if not trial.result.persistent]


def _informative(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials of search and confirmation; the proof must not help to choose what it judges."""
    return [t for t in trials if t.phase is not Phase.VERIFY]


def arms_of(times: Times, workload: Workload, cluster: Cluster) -> dict[Arm, Policy]:
    """Return what is worth proving against the default: the per-size policy, and the best that variables can say."""
    version = cluster.version
    table = assemble(times, workload, version=version, min_launches=CONFIRMED_LAUNCHES)

    def expressible(policy: Policy) -> bool:
        return compile_policy(policy, version=version, collectives=workload.collectives).complete

    confirmed = Times(
        by_setting={s: t for s, t in times.by_setting.items() if times.launches[s] >= CONFIRMED_LAUNCHES},
        launches=times.launches,
    )
    variables = collapse(confirmed, workload, version=version, expressible=expressible)
    policies = {Arm.DEFAULT: Policy()}
    if not table.is_default:
        policies[Arm.TABLE] = table
    if variables is not None:
        policies[Arm.VARIABLES] = variables
    return policies
