"""Confirmation: what the search believes to be best is launched again before anything is built on it."""

from __future__ import annotations

from collections.abc import Callable

from ncclt.core.assemble import Times, collect_times, finalists
from ncclt.core.study import Phase, Trial
from ncclt.core.trial import Runner
from ncclt.core.workload import Workload
from ncclt.search.launching import Journal, launch

CONFIRMED_LAUNCHES = 3
"""Launches of a setting, search included, that make its times trustworthy enough for a policy.

The best of many noisy trials is partly the luckiest one; after two more launches its median has come back to earth.
"""

_ROUNDS = 3


def confirm(
    runner: Runner,
    workload: Workload,
    journal: Journal,
    *,
    interrupted: Callable[[], bool],
    watch: Callable[[Trial, int, int], None],
) -> Times:
    """Launch the finalists until they are confirmed; return the times of everything measured so far.

    New finalists may come up when a lucky one falls back, so this goes on for up to three rounds; what is still
    unconfirmed then is left out of the policy.

    Args:
        runner: where trials run.
        workload: placed.
        journal: where trials are kept.
        interrupted: asked before every launch.
        watch: told after every launch: the trial, launches done and planned in this round.
    """
    version = runner.cluster.version
    for _ in range(_ROUNDS):
        times = collect_times(_informative(journal))
        pending = [
            setting
            for setting in finalists(times, workload, version=version)
            for _ in range(CONFIRMED_LAUNCHES - times.launches[setting])
        ]
        for number, setting in enumerate(pending, start=1):
            if interrupted():
                break
            watch(launch(runner, workload, journal, setting, phase=Phase.CONFIRM), number, len(pending))
        if not pending or interrupted():
            break
    return collect_times(_informative(journal))


def _informative(journal: Journal) -> list[Trial]:
    """Return search and confirmation; the verification must not help to choose what it judges."""
    return [t for t in journal.trials() if t.phase is not Phase.VERIFY]
