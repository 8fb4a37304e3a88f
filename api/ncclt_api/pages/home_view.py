"""The content of the map: clusters by workloads, computed before any HTML."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from urllib.parse import quote

from ncclt.core.cluster import Fingerprint
from ncclt.core.recommendation import Decision, Recommendation, TimesOrigin, Verdict
from ncclt.deliver.use import use_of
from ncclt.store.overview import Pair
from ncclt_api.pages.wording import format_age, format_speedup

MOST_ROWS, MOST_COLUMNS = 40, 24
"""Largest map on one page; a filter shows the rest."""

_SHADES = (1.02, 1.05, 1.1, 1.2)
"""Speed-ups at which the colour of a cell gets stronger."""

_ORDER = {origin: position for position, origin in enumerate(TimesOrigin)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownGain:
    """A revision as a table shows it.

    Attributes:
        id, revision, study: of the recommendation.
        cluster, model: names.
        href: the page of its study.
        decision: of the form in which it is used.
        mood, word: the badge: `tuned`, `keep-default`, `undecided` or `failed` (stale), and its text; `demonstration`
            where times from elsewhere show a gain.
        speedup, low, high: with the 95 % interval; None where nothing was measured for the proof.
        default_us: communication time per step of the NCCL default, µs; None where it was not measured.
        by_table: only the tuner table delivers it; plain variables keep the NCCL default.
        policy_us: that of the policy, µs, in the ratio of the speed-up; None where there was nothing to prove.
        origin: `measured`, `recorded` or `simulated`.
        label: the mark that goes with every number of it; empty where it was measured.
        shape: nodes and GPUs of each, as text.
        nccl_version: that it was measured with.
        fingerprint: digest of what it is valid for.
        stale: why it is no longer served; empty while it is.
        created, age: when it was published.
    """

    id: str
    revision: int
    study: str
    cluster: str
    model: str
    href: str
    decision: str
    mood: str
    word: str
    speedup: float | None
    low: float | None
    high: float | None
    default_us: float | None
    policy_us: float | None
    by_table: bool
    origin: str
    label: str
    shape: str
    nccl_version: str
    fingerprint: str
    stale: str
    created: str
    age: str


def gain_of(found: Recommendation, *, now: datetime) -> ShownGain:
    """Return a revision as a table shows it."""
    verdict = _verdict(found)
    # A verdict without blocks says that nothing was worth proving, and has no policy.
    proven = verdict.blocks > 0 and math.isfinite(verdict.interval[1])
    place = found.fingerprint
    return ShownGain(
        id=found.id,
        revision=found.revision,
        study=found.study,
        cluster=found.cluster,
        model=found.model,
        href=f"/studies/{quote(found.study, safe='')}",
        decision=verdict.decision.value,
        mood="failed" if found.stale else verdict.decision.value,
        word=_word(found, verdict),
        by_table=verdict.decision is Decision.TUNED
        and not (found.variables is not None and found.variables.verdict.decision is Decision.TUNED),
        speedup=verdict.speedup if verdict.blocks else None,
        low=verdict.interval[0] if proven else None,
        high=verdict.interval[1] if proven else None,
        default_us=verdict.default_us or None,
        policy_us=verdict.paired_policy_us if verdict.blocks else None,
        origin=found.origin.value,
        label=found.label,
        shape=f"{place.nodes} × {place.gpus_per_node} {place.gpu}",
        nccl_version=place.nccl_version,
        fingerprint=_digest(place),
        stale=found.stale,
        created=found.created,
        age=format_age(found.created, now),
    )


def _word(found: Recommendation, verdict: Verdict) -> str:
    if found.stale:
        return "stale"
    return found.verdict_word(verdict).replace("-", " ")


def _verdict(found: Recommendation) -> Verdict:
    """Return the verdict of the form in which a revision is used; only proven variables make that a question."""
    plain = found.variables
    if plain is None or plain.verdict.decision is not Decision.TUNED:
        return found.table.verdict
    return use_of(found).proven.verdict


@lru_cache(maxsize=1024)
def _digest(place: Fingerprint) -> str:
    return place.digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One workload on one cluster.

    Attributes:
        gain: the newest revision that a job could get; None = only a search is running.
        shapes: other sizes of the job or releases of NCCL that have a revision too.
        running: studies that are running.
        shade: how strong its colour is, 0 to 4.
        before: what it was at the time that was asked about, as text; empty = nothing else, or no time was asked about.
        is_same: it did not change since that time.
    """

    cluster: str
    model: str
    gain: ShownGain | None
    shapes: int
    running: int
    shade: int
    before: str
    is_same: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRow:
    """One cluster: its cells by the columns of the map, None where there is nothing."""

    cluster: str
    origins: tuple[str, ...]
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The map in numbers.

    Attributes:
        tuned, kept, undecided: pairs whose result is served, by its verdict.
        stale: pairs whose result is no longer served.
        running: studies.
        changed: pairs with another result than at the time that was asked about; all where none was.
        elsewhere: of the tuned ones, those with recorded or simulated times.
        median: speed-up of those that are tuned and served, of measured ones where there are any; None where there is
            none.
    """

    tuned: int = 0
    kept: int = 0
    undecided: int = 0
    stale: int = 0
    running: int = 0
    changed: int = 0
    elsewhere: int = 0
    median: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeMap:
    """The whole map.

    Attributes:
        models: the columns.
        rows: the clusters: measured ones first, then recorded, then simulated; of each those with most workloads.
        counts: of all pairs, shown or not.
        clusters_left, models_left: that did not fit.
    """

    models: tuple[str, ...]
    rows: tuple[MapRow, ...]
    counts: Counts = field(default_factory=Counts)
    clusters_left: int = 0
    models_left: int = 0


def home_map(
    pairs: Collection[Pair], *, now: datetime, before: Mapping[tuple[str, str], Recommendation] | None = None
) -> HomeMap:
    """Return the map of some pairs.

    Args:
        pairs: what is known, in any order.
        now: for ages.
        before: what was published at an earlier time, by names: the map shows what changed since; None = it does not.
    """
    cells = [_cell(pair, now=now, before=before) for pair in pairs]
    used: dict[str, int] = {}
    for cell in cells:
        used[cell.model] = used.get(cell.model, 0) + 1
    models = sorted(sorted(used), key=lambda name: -used[name])
    of: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        of.setdefault(cell.cluster, {})[cell.model] = cell
    names = sorted(of, key=lambda name: (_rank(of[name].values()), -len(of[name]), name))
    shown = models[:MOST_COLUMNS]
    return HomeMap(
        models=tuple(shown),
        rows=tuple(
            MapRow(
                cluster=name,
                origins=tuple(sorted({c.gain.origin for c in of[name].values() if c.gain})),
                cells=tuple(of[name].get(model) for model in shown),
            )
            for name in names[:MOST_ROWS]
        ),
        counts=_counts(cells),
        clusters_left=max(0, len(names) - MOST_ROWS),
        models_left=max(0, len(models) - MOST_COLUMNS),
    )


def _cell(pair: Pair, *, now: datetime, before: Mapping[tuple[str, str], Recommendation] | None) -> Cell:
    gain = gain_of(pair.recommendation, now=now) if pair.recommendation else None
    is_tuned = gain is not None and gain.decision == Decision.TUNED and not gain.stale and gain.speedup
    earlier = (before or {}).get((pair.cluster, pair.model))
    was = gain_of(earlier, now=now) if earlier else None
    is_same = before is not None and not _has_changed(was, gain)
    return Cell(
        cluster=pair.cluster,
        model=pair.model,
        gain=gain,
        shapes=max(0, pair.shapes - 1),
        running=pair.running,
        shade=sum(gain.speedup >= least for least in _SHADES) if gain and is_tuned and gain.speedup else 0,
        before="" if before is None or is_same or gain is None else _in_short(was),
        is_same=is_same,
    )


def _has_changed(was: ShownGain | None, now: ShownGain | None) -> bool:
    """Return whether a reader has to know: another verdict, an interval apart from the earlier one, or a stale one."""
    if was is None or now is None:
        return now is not was
    if was.decision != now.decision or now.stale:
        return True
    if was.low is None or was.high is None or now.low is None or now.high is None:
        return False
    return now.decision == Decision.TUNED and (now.low > was.high or now.high < was.low)


def _in_short(was: ShownGain | None) -> str:
    if was is None:
        return "new"
    is_tuned = was.decision == Decision.TUNED and was.speedup is not None
    return f"was {format_speedup(was.speedup)}" if is_tuned else f"was {was.decision.partition('-')[0]}"


def _rank(cells: Iterable[Cell]) -> int:
    """Return where a cluster stands: with a measured result, only recorded ones, only simulated ones, none."""
    return min((_ORDER[TimesOrigin(cell.gain.origin)] for cell in cells if cell.gain), default=len(_ORDER))


def _counts(cells: Iterable[Cell]) -> Counts:
    gains = [(cell, cell.gain) for cell in cells if cell.gain]
    served = [gain for _, gain in gains if not gain.stale]
    tuned = [gain for gain in served if gain.decision == Decision.TUNED]
    measured = [gain for gain in tuned if gain.origin == TimesOrigin.MEASURED]
    speedups = [gain.speedup for gain in measured or tuned if gain.speedup]
    decided = [gain.decision for gain in served]
    return Counts(
        tuned=len(tuned),
        kept=decided.count(Decision.KEEP_DEFAULT),
        undecided=decided.count(Decision.UNDECIDED),
        stale=len(gains) - len(served),
        running=sum(cell.running for cell in cells),
        changed=sum(not cell.is_same for cell, _ in gains),
        elsewhere=len(tuned) - len(measured),
        median=statistics.median(speedups) if speedups else None,
    )
