"""What was measured elsewhere, as a prior mean: earlier studies of like hardware, and recorded landscapes of it.

Each source is predicted by the model of its own study for the settings of this one. What that differs by from NCCL's
cost model there is added to the cost model here: whole for a message that was measured there, less the further its
size, collective or group is from any, nothing where the source knows nothing. How much a source counts is settled by
what is measured here (`search.posterior`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve

from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import BegunFrom, Study, Trial
from ncclt.core.trial import Outcome
from ncclt.core.workload import Workload
from ncclt.errors import NotFoundError
from ncclt.measure.simulated import load_landscape
from ncclt.search.gaussian_process import Array
from ncclt.search.kernels import likeness
from ncclt.search.observations import Launch, flattened, observe
from ncclt.search.posterior import Model
from ncclt.search.prior import expected_log_ratios
from ncclt.search.surfaces import Surface
from ncclt.store.store import Store
from ncclt.user_dirs import recorded_tables

MOST_SOURCES = 3
"""Most sources that a study begins from: what more would add is hardly new, and each costs time at every proposal."""

FEWEST_LAUNCHES = 4
"""Launches that a source must have, the default's included: fewer say no more than the cost model."""

LEAST_TRUST = 0.1
"""A source that is expected to predict worse than this is not worth its time."""

_TRUST = 0.9
"""Probability that times of the same machine under the same NCCL predict those of another workload there."""

_PER_DOUBLING, _ACROSS_NODES, _PER_RELEASE, _OTHER_DRIVER, _RECORDED = 0.9, 0.6, 0.93, 0.97, 0.7
"""What is left of that with twice or half the GPUs, between one node and several, for each minor release of NCCL
between the two, under another driver, and for a record of another machine of the same kind."""

_LOOKED_AT = 12
"""Most stored studies of like hardware, the newest first, whose launches are read."""

_REPLAY = "replay"
"""Launcher of studies whose times were recorded elsewhere."""

_UNSURE = 0.1
"""Standard deviation of a source's own prediction, of the log ratio, at which half of it is taken over."""

_SIZE_DOUBLINGS, _NUGGET = 3.0, 0.02
"""Length over message sizes, in doublings, and the share of a residual that is each message's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierStudy:
    """Launches from elsewhere.

    Attributes:
        begun: how it is shown and stored.
        cluster: where they were made.
        workload: placed there; every launch has a time for each of its messages.
        launches: the default's among them.
        trust: probability, before anything is measured here, that it predicts this study.
    """

    begun: BegunFrom
    cluster: Cluster
    workload: Workload
    launches: tuple[Launch, ...]
    trust: float


def trust_in(there: Cluster, here: Cluster, *, recorded: bool = False) -> float:
    """Return how likely times of a cluster are to predict those of another, before anything is measured.

    Args:
        there: the source's.
        here: this study's.
        recorded: one of the two is a record of another machine.

    Returns:
        0 where GPU, links or fabric differ; where one is recorded, also where nodes or ports do.
    """
    if _machine(there, here, whole=recorded) != _machine(here, there, whole=recorded):
        return 0.0
    trust: float = _TRUST * (_RECORDED if recorded else 1.0)
    trust *= _PER_DOUBLING ** abs(math.log2(there.world_size / here.world_size))
    if (there.nodes > 1) != (here.nodes > 1):
        trust *= _ACROSS_NODES
    if there.version.major != here.version.major:
        return 0.0
    releases = abs(there.version.minor - here.version.minor)
    trust *= float(_PER_RELEASE**releases)
    if there.driver and here.driver and there.driver != here.driver:
        trust *= _OTHER_DRIVER
    return trust


def _machine(cluster: Cluster, other: Cluster, *, whole: bool) -> tuple[object, ...]:
    """Return what must be equal; the network does not count where one of the two does not use it."""
    words: tuple[object, ...] = (cluster.gpu, cluster.compute_capability, cluster.link_class)
    if min(cluster.nodes, other.nodes) > 1:
        words += (cluster.fabric,)
    if whole:
        words += (cluster.nodes, cluster.gpus_per_node, cluster.nics_per_node, cluster.nic_gbps)
    return words


def launches_of(trials: Iterable[Trial], workload: Workload) -> tuple[Launch, ...]:
    """Return the launches of single settings of a study, by number."""
    found = []
    for trial in trials:
        if trial.policy is not None:
            continue
        times = {m.message: m.time_us for m in trial.result.measurements}
        fine = trial.result.outcome is Outcome.OK and all(c.message in times for c in workload.messages)
        if not fine and trial.result.outcome is Outcome.OK:
            continue
        found.append(
            Launch(
                setting=trial.setting,
                times_us=tuple(times[c.message] for c in workload.messages) if fine else None,
                wrong=trial.result.outcome is Outcome.WRONG_RESULT,
            )
        )
    return tuple(found)


def begin(store: Store, study: Study, *, launched: bool) -> tuple[Study, tuple[EarlierStudy, ...]]:
    """Return a study with what it begins from, and these sources; they are chosen once and kept with the study.

    A study that has trials and no sources began from the cost model and continues so: the same trials lead to the same
    proposals however often it is interrupted, and whatever else is measured meanwhile.

    Args:
        store: holds earlier studies; they are only read.
        study: as it is stored.
        launched: something real is started, so recorded clusters of the same machine count too.
    """
    if study.begun_from:
        again = (_stored(store, study, begun) for begun in study.begun_from)
        return study, tuple(source for source in again if source is not None)
    if store.trial_page(study.id, limit=1):
        return study, ()
    chosen = _nearest(_candidates(store, study, launched=launched), study)
    kept = store.keep_sources(study.id, [source.begun for source in chosen], again=False)
    return (
        (kept, chosen) if list(kept.begun_from) == [s.begun for s in chosen] else begin(store, kept, launched=launched)
    )


def foreseen(store: Store, study: Study, *, launched: bool) -> tuple[BegunFrom, ...]:
    """Return what a study that is not stored yet would begin from, or what the stored one of its name began from.

    Args:
        store, launched: as `begin` takes them; nothing is written.
        study: as it would be stored.
    """
    with suppress(NotFoundError):
        return store.study(study.id).begun_from
    return tuple(source.begun for source in _nearest(_candidates(store, study, launched=launched), study))


def weighed(study: Study, sources: Sequence[EarlierStudy], weights: Sequence[float]) -> tuple[BegunFrom, ...]:
    """Return what a study began from with the weights that its measurements left.

    Args:
        study: as it is stored.
        sources: those of them that still exist.
        weights: of the sources; none = nothing was proposed, so nothing was weighed.
    """
    found = {source.begun: weight for source, weight in zip(sources, weights, strict=bool(weights))}
    return tuple(replace(begun, weight=found.get(begun, begun.weight)) for begun in study.begun_from)


def _candidates(store: Store, study: Study, *, launched: bool) -> Iterator[EarlierStudy]:
    def alike(other: Study) -> bool:
        return other.id != study.id and _trust_of(other, study) > LEAST_TRUST

    for other in store.studies_where(alike, simulated=study.simulated, most=_LOOKED_AT):
        launches = launches_of(store.trials(other.id), other.workload)
        begun = BegunFrom(
            study=other.id, name=other.workload.name, nodes=other.cluster.nodes, launches=len(launches), weight=0.0,
            label=other.label,
        )  # fmt: skip
        yield _source(begun, other, launches, _trust_of(other, study))
    for name in recorded_tables() if launched else ():
        found = _recorded(store, study, name)
        if found is not None:
            yield found


def _trust_of(other: Study, study: Study) -> float:
    recorded = (other.launcher == _REPLAY) != (study.launcher == _REPLAY)
    return trust_in(other.cluster, study.cluster, recorded=recorded)


def _source(begun: BegunFrom, other: Study, launches: tuple[Launch, ...], trust: float) -> EarlierStudy:
    return EarlierStudy(begun=begun, cluster=other.cluster, workload=other.workload, launches=launches, trust=trust)


def _recorded(store: Store, study: Study, name: str) -> EarlierStudy | None:
    """Return a shipped landscape as a source for a study of the same machine, None where it is not of one."""
    cluster = store.cluster(name)
    trust = trust_in(cluster, study.cluster, recorded=True)
    if trust <= LEAST_TRUST:
        return None
    landscape = load_landscape(recorded_tables()[name])
    covered = tuple(calls for calls in study.workload.messages if landscape.covers(calls.message))
    launches = []
    for setting in (DEFAULT, *landscape.settings()):
        samples = [landscape.time_samples(setting, calls.message) for calls in covered]
        if all(samples):
            launches.append(Launch(setting=setting, times_us=tuple(statistics.median(times) for times in samples)))
    if not covered or len(launches) < FEWEST_LAUNCHES:
        return None
    begun = BegunFrom(
        name=name, nodes=cluster.nodes, launches=len(launches) - 1, weight=0.0, label=cluster.recorded_label
    )
    workload = replace(study.workload, messages=covered)
    return EarlierStudy(begun=begun, cluster=cluster, workload=workload, launches=tuple(launches), trust=trust)


def _stored(store: Store, study: Study, begun: BegunFrom) -> EarlierStudy | None:
    """Return a source as the study had it when it began; None if its landscape or study was removed."""
    if not begun.study:
        found = _recorded(store, study, begun.name) if begun.name in recorded_tables() else None
        return None if found is None else replace(found, begun=begun)
    try:
        other = store.study(begun.study)
    except NotFoundError:
        return None  # by `ncclt store prune`
    launches = launches_of(store.trials(other.id), other.workload)[: begun.launches]
    return _source(begun, other, launches, _trust_of(other, study))


def _nearest(candidates: Iterable[EarlierStudy], study: Study) -> tuple[EarlierStudy, ...]:
    """Return the sources that are likely to tell most, each with its first weight."""
    here = [calls.message for calls in study.workload.messages]
    shares = np.array([calls.bytes_per_step for calls in study.workload.messages]) / study.workload.bytes_per_step
    ranked: list[tuple[float, EarlierStudy]] = []
    for source in candidates:
        good = [launch for launch in source.launches if launch.times_us is not None]
        if len(good) < FEWEST_LAUNCHES or not any(launch.setting.is_default for launch in good):
            continue
        there = [_placed(calls.message, source.cluster, study.cluster) for calls in source.workload.messages]
        told = source.trust * float(_carried(there, here, study.cluster)[1] @ shares)
        if told > LEAST_TRUST:
            ranked.append((told, replace(source, begun=replace(source.begun, weight=round(told, 4)))))
    # Of equally near ones the larger: it has seen more.
    ranked.sort(key=lambda pair: (-round(pair[0], 3), -len(pair[1].launches), pair[1].begun.study))
    return tuple(source for _, source in ranked[:MOST_SOURCES])


def surface(
    source: EarlierStudy, settings: Sequence[Setting], messages: Sequence[Message], cluster: Cluster
) -> Surface:
    """Return what a source predicts for the settings and messages of a study.

    Args:
        source: with a launch of the default.
        settings: of interest here, without the default.
        messages: of the workload, placed here.
        cluster: here.
    """
    observed = observe(source.launches)
    whole = tuple(dict.fromkeys([*settings, *observed.ratios]))
    beliefs = Model(whole, source.workload, source.cluster).believe(observed, ())
    there = [calls.message for calls in source.workload.messages]
    count = len(settings)
    residual = beliefs.mean[:count] - flattened(expected_log_ratios(settings, there, source.cluster))
    known = 1 / (1 + beliefs.variance[:count] / _UNSURE**2)
    weights, reach = _carried([_placed(m, source.cluster, cluster) for m in there], messages, cluster)
    parts = np.abs(weights) / np.maximum(np.abs(weights).sum(axis=1, keepdims=True), _NUGGET)
    return Surface(departure=residual @ weights.T, coverage=np.round(known @ parts.T * reach, 8), trust=source.trust)


def _placed(message: Message, there: Cluster, here: Cluster) -> Message:
    """Return a message of a source as it would be here: one of the whole job stays one of the whole job."""
    if message.group_size != there.world_size:
        return message
    return replace(message, group_size=here.world_size, spans_nodes=here.nodes > 1)


def _carried(there: Sequence[Message], here: Sequence[Message], cluster: Cluster) -> tuple[Array, Array]:
    """Return how residuals of messages there are carried over to messages here, and how much of them arrives.

    Kriging with the covariance between messages of the search itself.

    Returns:
        here x there, and one share of 0 to 1 for each message here.
    """
    sizes = (
        likeness((Setting(channels=1),), [*there, *here], cluster).kernels(1.0, 1.0, _SIZE_DOUBLINGS, 1.0, 1.0).sizes
    )
    count = len(there)
    across = sizes[count:, :count]
    weights: Array = solve(sizes[:count, :count] + _NUGGET * np.eye(count), across.T, assume_a="pos").T
    reach: Array = np.clip((weights * across).sum(axis=1), 0.0, 1.0)
    return weights, reach
