"""Recommendation record: a policy with its verdict, for one workload on one fingerprint."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from ncclt.core.cluster import Cluster, Fingerprint
from ncclt.core.documents import Documented, Shape
from ncclt.core.message import Collective
from ncclt.core.plural import count_noun
from ncclt.core.policy import Policy
from ncclt.core.trial import ON_STEPS, TimesOrigin, times_origin
from ncclt.errors import NoRecommendationError, StaleRecommendationError

MIN_EFFECT = 0.02
"""Default for the smallest gain of communication time per step that is worth a change."""


SHAPE_PARTS = {"nodes": "nodes", "gpus_per_node": "GPUs per node", "nccl_version": "NCCL version"}
"""Facts that every request must state: fields of `Request` and `Fingerprint` -> as text."""

OPTIONAL_PARTS = {"driver": "driver", "topology_hash": "topology"}
"""Facts that count only if the request states them: fields of `Request` and `Fingerprint` -> as text."""

MOST_LISTED = 20
"""Most shapes listed in an error."""


class Decision(StrEnum):
    """Outcome of a verdict; only `tuned` changes anything.

    `untried` = there is no evidence: real jobs try the policy, as arms of an experiment alone.
    """

    TUNED = "tuned"
    KEEP_DEFAULT = "keep-default"
    UNDECIDED = "undecided"
    UNTRIED = "untried"


ORIGIN_WORDS = {TimesOrigin.RECORDED: "recorded", TimesOrigin.SIMULATED: "SIMULATED"}
"""Origins that nothing is served from unless a job allows it -> as marked everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Documented):
    """Result of the interleaved A/B test against the NCCL default.

    Attributes:
        decision: `tuned` only if the gain is proven, `keep-default` only if it is refuted or harm is shown.
        reason: one sentence, with numbers.
        speedup: communication time per step of the default over that of the policy; above 1 = faster.
        interval: 95 % interval of the speed-up, valid whenever the measuring ended; None at an end = without bound.
        blocks: measured, of two launches of default and policy each.
        default_us: median communication time per step under the default, µs.
        policy_us: median of the launches of the policy, µs; the paired estimate shown elsewhere is
            default_us / speedup.
        min_effect: smallest gain that was worth a change, as a share; the first verdicts lack it.
    """

    SHAPE: ClassVar = Shape(unbounded=("interval",))

    decision: Decision
    reason: str
    speedup: float
    interval: tuple[float, float]
    blocks: int
    default_us: float
    policy_us: float
    min_effect: float = MIN_EFFECT

    @property
    def paired_policy_us(self) -> float:
        """Return the policy's time per step that agrees with the speed-up, µs: the median ignores the pairs."""
        return self.default_us / self.speedup


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVerdict(Documented):
    """One form in which the result is delivered, with the verdict on exactly that form.

    Attributes:
        policy: the delivered policy.
        verdict: proven for this policy; with `keep-default` nothing is delivered. Its numbers compare with the NCCL
            default.
        over_today: the verdict against what the job runs today; None = it sets no tuning variables.
    """

    SHAPE: ClassVar = Shape(omitted=("over_today",))

    policy: Policy
    verdict: Verdict
    over_today: Verdict | None = None

    @property
    def beats_today(self) -> bool:
        """Return True if it beats what the user runs today too; settings of today that fail are beaten."""
        over = self.over_today
        return over is None or over.decision is Decision.TUNED or over.blocks < self.verdict.blocks

    @property
    def effective(self) -> Policy:
        """Return the policy that jobs get: a proven one, or one that they try; else the empty one."""
        return self.policy if self.verdict.decision in (Decision.TUNED, Decision.UNTRIED) else Policy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Today(Documented):
    """Tuning variables that the job sets today, and the verdict of the NCCL default against them.

    Attributes:
        variables: name -> value.
        default: verdict of the NCCL default against them; `tuned` = it is faster, so the variables cost time.
    """

    SHAPE: ClassVar = Shape(pairs=("variables",))

    variables: tuple[tuple[str, str], ...]
    default: Verdict

    @property
    def is_slower(self) -> bool:
        """Return True if the variables cost time, as the A/B test shows."""
        return self.default.decision is Decision.TUNED

    @property
    def words(self) -> str:
        """Return one sentence: what the variables cost or gain, or why that is not known."""
        names, (low, high) = ", ".join(name for name, _ in self.variables), self.default.interval
        reason = next(iter(self.default.reason.splitlines()), "")
        cost = f"{(self.default.speedup - 1) * 100:.1f} % (95 % CI {(low - 1) * 100:.1f} to {(high - 1) * 100:.1f})"
        if self.is_slower:
            return f"your settings cost {cost}: unset {names}"
        if self.default.blocks and low > 1 and self.default.decision is Decision.KEEP_DEFAULT:
            return f"your settings ({names}) cost {cost} in all, but without them {reason}"
        if self.default.blocks and high < 1:
            faster = (1 / self.default.speedup - 1) * 100
            return f"your settings ({names}) are {faster:.1f} % faster than the NCCL default"
        if self.default.blocks and high < 1 + self.default.min_effect:
            return f"your settings ({names}) cost less than {self.default.min_effect * 100:.3g} %"
        return f"your settings ({names}), compared with the NCCL default: {reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage(Documented):
    """Settings that the search of a study tried besides the default.

    Attributes:
        settings: measured on every message.
        measured, failed, untried: pairs of algorithm and protocol in the search space, as `ring/ll`: measured on every
            message, launched without success, and not launched.
        channels: numbers of channels that were forced and measured.
        converged: the search ended by itself, since no further launch promised a gain.
        remaining_gain: expected gain of the next launch, as a share of the communication time; None = not estimated.
    """

    settings: int
    measured: tuple[str, ...]
    failed: tuple[str, ...]
    untried: tuple[str, ...]
    channels: tuple[int, ...]
    converged: bool
    remaining_gain: float | None = None

    @property
    def is_enough(self) -> bool:
        """Return True if the default may be called the best: every pair was tried, or the search converged.

        send_recv and all_to_all have no pairs. Next to them other collectives may be too short for any of their pairs
        to matter; where no pair was measured, only the search can tell.
        """
        if not self.measured:
            return self.settings > 0 and self.converged and not self.failed
        return self.converged or not self.untried

    @property
    def summary(self) -> str:
        """Return it as text: `12 settings, 6 of 6 algorithm/protocol pairs, 2 to 16 channels`."""
        pairs = len(self.measured) + len(self.failed) + len(self.untried)
        words = [count_noun(self.settings, "setting")]
        if pairs:
            words.append(f"{len(self.measured)} of {pairs} algorithm/protocol pairs")
        if self.failed:
            words.append(f"{len(self.failed)} failed ({', '.join(self.failed)})")
        if self.channels:
            smallest, largest = min(self.channels), max(self.channels)
            words.append(f"{smallest} to {largest} channels" if smallest < largest else f"{largest} channels")
        if self.remaining_gain is not None:
            words.append(f"expected improvement of the next trial {self.remaining_gain * 100:.2g} %")
        return ", ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation(Documented):
    """A published revision for one workload on one fingerprint.

    Attributes:
        id: identifies the published revision.
        revision: counts up per (cluster, workload, fingerprint).
        study: id of the study that gave it.
        cluster: its name.
        model: name of the workload.
        workload_digest: hash of the tuned messages.
        collectives: collectives of the workload: every one must keep a legal algorithm.
        fingerprint: conditions under which it is valid.
        table: the per-size policy, delivered as a tuner table.
        variables: the best policy that plain variables can express, with its own verdict; None = there is none.
        simulated: times come from a model, not from measurements.
        launcher: name of the launcher of the trials.
        created: ISO time.
        source_digest: hash of the messages of the stored workload, before it was placed and cut; empty where it was
            not recorded.
        stale: reason why it is no longer served; empty while it is.
        dtypes: (collective, dtype) of the workload: each must keep a legal algorithm too; empty where they were not
            recorded.
        groups: (ranks, spans nodes) of the process groups that were measured; empty where they were not recorded.
        recorded: `recorded: SYSTEM, SOURCE` where the times were replayed; empty where they were not.
        coverage: of the search; None where it was not recorded.
        today: tuning variables of the job when it was measured, with a verdict; None = it set none.
        deterministic: the study left to NCCL what may change the order of additions, so it tried less.
    """

    SHAPE: ClassVar = Shape(schema=1, omitted=("recorded", "coverage", "today", "deterministic"))

    id: str
    revision: int
    study: str
    cluster: str
    model: str
    workload_digest: str
    collectives: frozenset[Collective]
    fingerprint: Fingerprint
    table: PolicyVerdict
    variables: PolicyVerdict | None
    simulated: bool
    launcher: str
    created: str
    source_digest: str = ""
    stale: str = ""
    dtypes: frozenset[tuple[Collective, str]] = frozenset()
    groups: frozenset[tuple[int, bool]] = frozenset()
    recorded: str = ""
    coverage: Coverage | None = None
    today: Today | None = None
    deterministic: bool = False

    @property
    def label(self) -> str:
        """Return the mark that everything derived from it carries; empty where it was measured in place."""
        if self.origin is TimesOrigin.SIMULATED:
            return "SIMULATED"
        return (self.recorded or "recorded: elsewhere") if self.origin is TimesOrigin.RECORDED else ""

    def verdict_word(self, verdict: Verdict) -> str:
        """Return the label of a verdict: a gain on recorded or simulated times is a demonstration."""
        word = "demonstration" if self.label and verdict.decision is Decision.TUNED else verdict.decision.value
        return f"{word} (deterministic)" if self.deterministic else word

    @property
    def is_untried(self) -> bool:
        """Return True if there is no evidence: jobs may only try it."""
        return self.table.verdict.decision is Decision.UNTRIED

    @property
    def has_step_times(self) -> bool:
        """Return True if step times of real jobs are its evidence, not communication times."""
        return self.launcher in ON_STEPS

    def with_verdict(self, verdict: Verdict) -> Recommendation:
        """Return a copy with this verdict on the table and on the variables."""
        variables = self.variables and replace(self.variables, verdict=verdict)
        return replace(self, table=replace(self.table, verdict=verdict), variables=variables)

    @property
    def is_searched_enough(self) -> bool:
        """Return True if the study tried enough to call the NCCL default the best, or its coverage is not known."""
        return self.coverage is None or self.coverage.is_enough

    @property
    def delivered(self) -> tuple[Policy, Policy]:
        """Return the proven policies of table and variables; two revisions with the same are no different for a job."""
        return self.table.effective, self.variables.effective if self.variables else Policy()

    @property
    def origin(self) -> TimesOrigin:
        """Return the origin of its times."""
        return times_origin(self.launcher, simulated=self.simulated)


def recommendation_id(
    study: str, table: PolicyVerdict, variables: PolicyVerdict | None, *, source_digest: str, trials: int
) -> str:
    """Return the id of a study's result after a number of trials: twelve hexadecimal digits of a content hash."""
    # Published ids are hashes of the repr of these records, so the name that their class had then is kept.
    texts = [form and f"Delivery(policy={form.policy!r}, verdict={form.verdict!r})" for form in (table, variables)]
    # Rules of that time did not say how their groups are placed.
    texts = [form and form.replace(", spans_nodes=None", "") for form in texts]
    return hashlib.sha256(f"{study}{texts[0]}{texts[1]}{source_digest}{trials}".encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The job that a recommendation is requested for.

    Attributes:
        cluster, model: names.
        nodes, gpus_per_node: the job's shape; None = not known.
        nccl_version: that the job will load; None = not known.
        driver, topology_hash: of the job's machines; None = not compared.
        site: `hash_site` of the job's variables of the site: what was measured with them comes first. None = not known.
        allowed: origins of times that the job may be given besides measured ones.
        job: its name, equal in all of its processes; empty = not known, so it has no part in a roll-out.
    """

    cluster: str
    model: str
    nodes: int | None = None
    gpus_per_node: int | None = None
    nccl_version: str | None = None
    driver: str | None = None
    topology_hash: str | None = None
    site: str | None = None
    allowed: frozenset[TimesOrigin] = frozenset()
    job: str = ""

    @property
    def unknown(self) -> tuple[str, ...]:
        """Return the parts of the job that are not known."""
        return tuple(part for part in SHAPE_PARTS if getattr(self, part) is None)

    def refusal(self, fingerprint: Fingerprint) -> str:
        """Return the known parts of the job that differ, `nodes: measured with 2, asked for 4`; empty = it fits."""
        return "; ".join(
            f"{name}: measured with {getattr(fingerprint, part) or 'an unknown one'}, asked for {wanted}"
            for part, name in (SHAPE_PARTS | OPTIONAL_PARTS).items()
            if (wanted := getattr(self, part)) is not None and wanted != getattr(fingerprint, part)
        )


def replaced_workload(recommendation: Recommendation, digest: str) -> str:
    """Return that a recommendation is stale because its workload was replaced; empty = it was not.

    Args:
        digest: of the workload now stored under this name; empty = there is none.
    """
    if not digest or not recommendation.source_digest or digest == recommendation.source_digest:
        return ""
    return f"the workload {recommendation.model!r} was replaced by one with other messages since it was tuned"


def changed_cluster(recommendation: Recommendation, cluster: Cluster | None) -> str:
    """Return that a recommendation is stale because its cluster is defined as another one now; empty = it is not.

    Compared is what a job does not say of itself: GPU, links, fabric and topology.

    Args:
        cluster: as it is stored now under this name; None = it is not.
    """
    measured = recommendation.fingerprint
    if cluster is None or measured.gpus_per_node > cluster.gpus_per_node or (measured.nodes > 1 and cluster.nodes == 1):
        return ""  # jobs of that size are refused by their own numbers
    now = cluster.sized(nodes=measured.nodes, gpus_per_node=measured.gpus_per_node).fingerprint()
    differences = [
        f"{name}: measured on {before}, now {after}"
        for name in ("gpu", "link_class", "fabric", "topology_hash")
        if (before := getattr(measured, name)) != (after := getattr(now, name)) and before and after
    ]
    return (
        f"the cluster {recommendation.cluster!r} has changed since it was tuned: {'; '.join(differences)}"
        if differences
        else ""
    )


def select(
    candidates: Iterable[Recommendation], request: Request, *, partly: bool = False, is_recorded: bool = False
) -> Recommendation:
    """Return the newest published revision that fits the request exactly.

    A recorded or simulated recommendation is only served to a job that allows it, and only where none was measured; a
    recorded one is preferred to a simulated one, of any age. If the newest one
    of a fingerprint is stale, none of that fingerprint is served: the others were measured even earlier. Another
    fingerprint that fits is still served. Those with the variables of the job's site come first.

    Args:
        candidates: newest first, in the order in which the store received them, since clocks of machines differ.
        partly: let what is not known of the job be anything, and times be of any origin: for listings, never for a job.
        is_recorded: the cluster is a recorded one, which can be tuned in its own shape alone.

    Raises:
        NoRecommendationError: nothing was published for it, nothing of that fits, or the job is not known well enough.
        StaleRecommendationError: what fits is stale.
    """
    published = list(candidates)
    fitting = [r for r in published if not request.refusal(r.fingerprint)]
    if not fitting or (request.unknown and not partly):
        raise _refuse_shape(request, published, fitting, is_recorded=is_recorded)
    origins = [origin for origin in TimesOrigin if any(r.origin is origin for r in fitting)]
    permitted = [o for o in origins if partly or o is TimesOrigin.MEASURED or o in request.allowed]
    workload, is_replayed = f"{request.model} on {request.cluster}", _are_replayed(published)
    if not permitted:
        was = " or ".join(ORIGIN_WORDS[origin] for origin in origins)
        raise NoRecommendationError(
            f"the recommendation for {workload} is {was}, not measured there",
            hint=f"run `{_tune_command(request, is_replayed=is_replayed)}` "
            f"{'on your own cluster' if is_replayed else 'there'}, "
            f"or accept it with `--allow {origins[0]}` ({origins[0]}=allow of the service)",
            available=_available(fitting),
        )
    best = [r for r in fitting if r.origin is permitted[0]]
    best = [r for r in best if request.site in r.fingerprint.sites] or best
    newest_of: dict[str, Recommendation] = {}
    for recommendation in best:
        newest_of.setdefault(recommendation.fingerprint.digest(), recommendation)
    newest = next((r for r in newest_of.values() if not r.stale), best[0])
    if newest.stale:
        again = f"{_tune_command(request, like=newest)} --continue 8"
        raise StaleRecommendationError(
            f"the recommendation {newest.id} for {workload} is stale: {newest.stale}",
            hint=f"run `{again}` to measure again, or `ncclt recheck` once the cause is repaired",
        )
    return newest


def _are_replayed(published: Collection[Recommendation]) -> bool:
    return bool(published) and all(r.origin is TimesOrigin.RECORDED for r in published)


def _refuse_shape(
    request: Request, published: Collection[Recommendation], fitting: Collection[Recommendation], *, is_recorded: bool
) -> NoRecommendationError:
    """Return the error where nothing was published, nothing of that fits, or the job is not known well enough."""
    workload = f"{request.model} on {request.cluster}"
    command = _tune_command(request, is_replayed=_are_replayed(published))
    if not published and is_recorded:
        replay = shlex.join(("ncclt", "tune", "--model", request.model, "--cluster", request.cluster))
        return NoRecommendationError(
            f"nothing has been tuned for {workload}",
            hint=f"run `{replay}` to replay what was recorded there, or `{_tune_command(request, is_replayed=True)}` "
            "on your own cluster",
        )
    if not published:
        return NoRecommendationError(f"nothing has been tuned for {workload}", hint=f"run `{command}`")
    if not fitting:
        why = sorted({request.refusal(r.fingerprint) for r in published})
        return NoRecommendationError(
            f"no recommendation for {workload} fits: {' / '.join(why)}",
            hint=f"run `{command}` to tune for this job; available, newest first:{_listed(published, SHAPE_PARTS)}",
            available=_available(published),
        )
    missing = ", ".join(SHAPE_PARTS[part] for part in request.unknown)
    return NoRecommendationError(
        f"cannot choose a recommendation for {workload}: {missing} not given",
        hint=f"add the options of one of these, newest first:{_listed(fitting, request.unknown)}",
        available=_available(fitting),
    )


def _tune_command(request: Request, *, is_replayed: bool = False, like: Recommendation | None = None) -> str:
    """Return the command that tunes for the job.

    Args:
        like: tune as this one was: by a simulation, or deterministically.
        is_replayed: what was published comes from a recording, which has one shape; the user's own cluster is meant.
    """
    words = ["ncclt", "tune", "--model", request.model, "--cluster", "NAME" if is_replayed else request.cluster]
    for part in SHAPE_PARTS:
        if (value := getattr(request, part)) is not None:
            words += [f"--{part.replace('_', '-')}", str(value)]
    if like is not None:
        words += ["--launcher", like.launcher] if like.simulated else []
        words += ["--deterministic"] if like.deterministic else []
    return shlex.join(words)


def _available(published: Iterable[Recommendation]) -> tuple[dict[str, Any], ...]:
    """Return the published shapes, newest first, each with its newest revision."""
    shapes: dict[tuple[Any, ...], dict[str, Any]] = {}
    for recommendation in published:
        shape = {part: getattr(recommendation.fingerprint, part) for part in SHAPE_PARTS}
        marks = {
            "simulated": recommendation.simulated,
            "recorded": recommendation.origin is TimesOrigin.RECORDED,
            "stale": bool(recommendation.stale),
        }
        row = {**shape, "recommendation": recommendation.id, **marks}
        shapes.setdefault(tuple(shape.values()), row)
    return tuple(shapes.values())[:MOST_LISTED]


def _listed(published: Iterable[Recommendation], parts: Collection[str]) -> str:
    """Return one line with the options for each published shape, newest first."""
    lines: dict[str, None] = {}
    for row in _available(published):
        options = " ".join(f"--{part.replace('_', '-')} {row[part]}" for part in SHAPE_PARTS if part in parts)
        words = {**{str(origin): word for origin, word in ORIGIN_WORDS.items()}, "stale": "stale"}
        marks = ", ".join(word for mark, word in words.items() if row.get(mark))
        lines.setdefault(f"\n    {options}{f'   ({marks})' if marks else ''}")
    return "".join(lines)
