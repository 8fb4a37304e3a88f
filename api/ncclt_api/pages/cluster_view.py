"""The content of the page of one cluster, computed before any HTML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ncclt.core.attestation import Attestation
from ncclt.core.cluster import Cluster
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.preflight import Preflight, State
from ncclt.core.recommendation import Recommendation
from ncclt.health.preflight.heat_map import heat_maps
from ncclt.store.overview import Era, Pair
from ncclt_api.pages.home_view import ShownGain, gain_of
from ncclt_api.pages.jobs import EFFECT_WORDS
from ncclt_api.pages.wording import format_age

REGRESSION = 0.03
"""Share by which the default's own time may grow from one NCCL to the next before it is marked: above the noise of two
studies on different days (an estimate)."""

_MOODS = {State.HEALTHY: "tuned", State.DEGRADED: "failed", State.UNMEASURED: "open"}
_HEAT = (0.5, 0.8, 0.95)
"""Shares of the usual bandwidth of a pair at which the colour of the matrix changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One workload on this cluster: what a job gets, and whether it took effect where it ran.

    Attributes:
        model: name of the workload.
        gain: the newest revision; None = only a search is running.
        running: studies that are running.
        effect_mood, effect: the newest attestation as a badge; empty = no job reported.
    """

    model: str
    gain: ShownGain | None
    running: int
    effect_mood: str
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One workload under one NCCL.

    Attributes:
        gain: the newest revision under it.
        slower: by which share the default is slower than under the release before, None = it is the first; only where
            the rest of the fingerprint is the same.
        mood: `loss`, `gain`, or empty within the noise.
    """

    gain: ShownGain
    slower: float | None
    mood: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """One workload over the releases of NCCL, by the columns of the table; None where it was not tuned."""

    model: str
    releases: tuple[Release | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EraRow:
    """A fingerprint under which something was published; `known` are its fields where a revision tells them."""

    digest: str
    is_current: bool
    revisions: int
    first: str
    last: str
    known: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightRow:
    """One preflight: its verdict, and the share of what was expected of all nodes together, None = not measured."""

    id: str
    created: str
    age: str
    mood: str
    state: str
    verdict: str
    simulated: bool
    gbps: float | None
    expected_gbps: float | None
    share: float | None
    launches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """What pairs reach of what pairs usually reach: rows of (share, heat 0 to 3), None = not measured."""

    title: str
    names: tuple[str, ...]
    rows: tuple[tuple[tuple[float, int] | None, ...], ...]
    left_out: int
    of: str
    age: str
    simulated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One job's attestation."""

    mood: str
    word: str
    model: str
    recommendation: str
    reason: str
    hosts: int
    age: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The content of the page."""

    cluster: Cluster
    in_catalogue: bool
    served: tuple[Served, ...]
    versions: tuple[str, ...]
    regressions: tuple[Regression, ...]
    eras: tuple[EraRow, ...]
    preflights: tuple[PreflightRow, ...]
    matrices: tuple[Matrix, ...]
    reports: tuple[Report, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What the store knows of a cluster: see the methods of `Store` of these names."""

    cluster: Cluster
    in_catalogue: bool
    pairs: Sequence[Pair]
    newest: Sequence[Recommendation]
    eras: Sequence[Era]
    preflights: Sequence[Preflight]
    attestations: Sequence[Attestation]
    effects: Mapping[str, str]


def cluster_view(facts: ClusterFacts, *, now: datetime) -> ClusterView:
    """Return the content of the page of a cluster."""
    versions, regressions = _regressions(facts.newest, now)
    words = {effect.value: shown for effect, shown in EFFECT_WORDS.items()}
    return ClusterView(
        cluster=facts.cluster,
        in_catalogue=facts.in_catalogue,
        served=tuple(
            Served(
                model=pair.model,
                gain=gain_of(pair.recommendation, now=now) if pair.recommendation else None,
                running=pair.running,
                effect_mood=words[effect][0] if effect else "",
                effect=words[effect][1] if effect else "",
            )
            for pair in facts.pairs
            for effect in (facts.effects.get(pair.recommendation.id, "") if pair.recommendation else "",)
        ),
        versions=versions,
        regressions=regressions,
        eras=_eras(facts),
        preflights=tuple(_preflight(one, now) for one in facts.preflights),
        matrices=_matrices(facts.preflights, now),
        reports=tuple(
            Report(
                mood=EFFECT_WORDS[one.effect][0],
                word=EFFECT_WORDS[one.effect][1],
                model=one.model,
                recommendation=one.recommendation,
                reason=one.reason,
                hosts=one.hosts,
                age=format_age(one.created, now),
            )
            for one in facts.attestations
        ),
    )


def _regressions(newest: Iterable[Recommendation], now: datetime) -> tuple[tuple[str, ...], tuple[Regression, ...]]:
    """Return the releases, oldest first, and each workload over them; the shape with most releases is taken."""
    by_model: dict[str, dict[str, dict[str, Recommendation]]] = {}
    for one in newest:
        place = one.fingerprint
        shape = f"{place.nodes}x{place.gpus_per_node} {place.gpu} {place.fabric} {one.origin.value}"
        by_model.setdefault(one.model, {}).setdefault(shape, {}).setdefault(place.nccl_version, one)
    chosen = {model: max(shapes.values(), key=len) for model, shapes in by_model.items()}
    versions = sorted({version for found in chosen.values() for version in found}, key=NcclVersion.parse)
    rows = []
    for model in sorted(chosen):
        releases: list[Release | None] = []
        before: ShownGain | None = None
        for version in versions:
            found = chosen[model].get(version)
            if found is None:
                releases.append(None)
                continue
            gain = gain_of(found, now=now)
            slower = None
            if before and before.default_us and gain.default_us:
                slower = gain.default_us / before.default_us - 1
            mood = "" if slower is None or abs(slower) < REGRESSION else "loss" if slower > 0 else "gain"
            releases.append(Release(gain=gain, slower=slower, mood=mood))
            before = gain if gain.default_us else before
        rows.append(Regression(model=model, releases=tuple(releases)))
    return tuple(versions), tuple(rows)


def _eras(facts: ClusterFacts) -> tuple[EraRow, ...]:
    known = {one.fingerprint.digest(): one.fingerprint for one in facts.newest}
    current = facts.cluster.fingerprint().digest()
    rows = [
        EraRow(
            digest=era.fingerprint,
            is_current=era.fingerprint == current,
            revisions=era.revisions,
            first=era.first,
            last=era.last,
            known=known[era.fingerprint].to_document() if era.fingerprint in known else {},
        )
        for era in facts.eras
    ]
    if current not in {row.digest for row in rows}:
        known_now = facts.cluster.fingerprint().to_document()
        rows.insert(0, EraRow(digest=current, is_current=True, revisions=0, first="", last="", known=known_now))
    return tuple(rows)


def _preflight(one: Preflight, now: datetime) -> PreflightRow:
    largest = one.rows[-1] if one.rows else None
    share = largest.busbw_gbps / largest.expected_gbps if largest and largest.expected_gbps else None
    verdict = one.verdict.removeprefix("SIMULATED: ").removeprefix(f"{one.state.value}: ")
    return PreflightRow(
        id=one.id,
        created=one.created,
        age=format_age(one.created, now),
        mood=_MOODS[one.state],
        state=one.state.value,
        verdict=verdict,
        simulated=one.simulated,
        gbps=largest.busbw_gbps if largest else None,
        expected_gbps=largest.expected_gbps if largest else None,
        share=share,
        launches=len(one.readings),
    )


def _matrices(preflights: Iterable[Preflight], now: datetime) -> tuple[Matrix, ...]:
    """Return the maps of the newest preflight that measured pairs."""
    for one in preflights:
        if maps := heat_maps(one):
            return tuple(
                Matrix(
                    title=found.title,
                    names=found.names,
                    left_out=found.left_out,
                    of=one.id,
                    age=format_age(one.created, now),
                    simulated=one.simulated,
                    rows=tuple(
                        tuple(
                            None
                            if (share := found.share(first, second)) is None or first == second
                            else (share, sum(share >= least for least in _HEAT))
                            for second in found.names
                        )
                        for first in found.names
                    ),
                )
                for found in maps
            )
    return ()
