"""Warm start: what other studies found best is tried early, and counts only as it is measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ncclt.core.cluster import Cluster
from ncclt.core.setting import Setting
from ncclt.core.study import Study, Trial
from ncclt.core.workload import Workload
from ncclt.search.assemble import assemble, collect_times
from ncclt.search.posterior import believed

MOST_WARM = 3
"""Most settings of other studies that are tried early: more would cost as much as searching."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSetting:
    """A setting that was good elsewhere.

    Attributes:
        setting: to try.
        study: the name of the study that found it.
    """

    setting: Setting
    study: str


def warm_start(
    studies: Sequence[tuple[Study, Sequence[Trial]]], cluster: Cluster, workload: Workload, *, most: int = MOST_WARM
) -> tuple[WarmSetting, ...]:
    """Return the settings that the nearest studies found best, those of most weight first.

    Nearest: the same fabric, then the same GPU, link and number of nodes, then similar sizes. The caller leaves out
    simulated studies where trials are measured, and the reverse.

    Args:
        studies: each with its trials.
        cluster: to be searched on.
        workload: placed.
        most: settings to return at most.
    """
    usable = [(study, trials) for study, trials in studies if any(t.setting.is_default for t in _good(trials))]
    ranked = sorted(usable, key=lambda pair: (_distance(pair[0], cluster, workload), pair[0].name))
    found: dict[Setting, WarmSetting] = {}
    for study, trials in ranked:
        for setting in _best(study, trials):
            found.setdefault(setting, WarmSetting(setting=setting, study=study.name))
    return tuple(found.values())[:most]


def _good(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.score_us is not None]


def _distance(study: Study, cluster: Cluster, workload: Workload) -> tuple[float, ...]:
    """Return how far a study is; the first figure weighs most."""
    there = study.cluster.fingerprint()
    here = cluster.fingerprint()
    hardware = (there.gpu != here.gpu) + (there.link_class != here.link_class)
    return (there.fabric != here.fabric, hardware, there.nodes != here.nodes, 1 - _overlap(study.workload, workload))


def _overlap(theirs: Workload, ours: Workload) -> float:
    """Return the share of our bytes whose collective and power of two of bytes occur there too."""
    known = {(c.message.collective, c.message.size_bytes.bit_length()) for c in theirs.messages}
    shared = [
        c.bytes_per_step for c in ours.messages if (c.message.collective, c.message.size_bytes.bit_length()) in known
    ]
    return sum(shared) / ours.bytes_per_step


def _best(study: Study, trials: Sequence[Trial]) -> list[Setting]:
    """Return what the best policy of a study used, most time per step first."""
    times = collect_times(trial for trial in trials if trial.policy is None)
    expected = believed(times, study.workload, study.cluster)
    policy = assemble(expected, study.workload, version=study.cluster.version)
    weights: dict[Setting, float] = {}
    for calls in study.workload.messages:
        setting = policy.setting_for(calls.message)
        if not setting.is_default and calls.message in times.default:
            cost = calls.calls_per_step * times.default[calls.message]
            weights[setting] = weights.get(setting, 0.0) + cost
    return sorted(weights, key=lambda s: (-weights[s], s.digest()))
