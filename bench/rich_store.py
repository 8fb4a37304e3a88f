"""Fill a store with everything that the pages have to show, for their bench, their tests and the pictures in the docs.

The catalogue's clusters and workloads and some of our own; for each pair that is in use a year of studies under several
releases of NCCL: tuned, kept, undecided, stale, superseded, interrupted, running, with failed trials, rechecks, jobs
and preflights; one study of many trials; names that try to break a page. `Size.replays` recorded landscapes are really
searched, by `ncclt.tune`; all other times are made up here and prove nothing. Bulk rows are written by the store's own
row functions, in one transaction per hundred studies.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import insert

import ncclt
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.attestation import Attestation, CallOutcome, DeliveredPolicy, Form, LogEvidence, Observed, ObservedCall
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.preflight import ExpectedSize, FabricFinding, Part, Preflight, ProbeReading, Section, State
from ncclt.core.recheck import Freshness, Recheck
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation, Verdict
from ncclt.core.revision import Action, Actor
from ncclt.core.rollout import JobTime
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Phase, Study, StudyState, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.core.workload import Provenance, Workload
from ncclt.deliver.attest import attest
from ncclt.prove.rollout import judge_stored
from ncclt.store import Store
from ncclt.store.documents import to_text
from ncclt.store.studies import study_row
from ncclt.store.tables import history, job_starts, job_times, measurements, recommendations, studies, trials
from ncclt.store.trials import measurement_row, trial_row
from ncclt.testing.samples import sample_cluster, sample_recommendation

HOSTILE = ("<script>alert('x')</script>", "\"'&amp;</bdi>", "cluster-\u202egnp.exe", "w" * 5000)
"""Names that must stay text: markup, quotes, right-to-left, far too long."""

VERSIONS = ("2.22.3", "2.26.5", "2.27.7", "2.28.9")
MIB = 1 << 20
PROOF_LAUNCHES = 8
REPLAYED = (("resnet101", "mi355x-2x8"), ("bert", "l40s-1x4"), ("vit-l-32", "l40s-1x4"))
SETTINGS = tuple(
    Setting(algorithm=algorithm, protocol=protocol, channels=channels)
    for algorithm, protocol, channels in itertools.product(
        (Algorithm.RING, Algorithm.TREE), (Protocol.SIMPLE, Protocol.LL, Protocol.LL128), (None, 2, 4, 8, 16, 24, 32)
    )
)
FAILURES = {
    Outcome.CRASHED: "node1:4242:4242 [0] NCCL WARN Cuda failure 'an illegal memory access was encountered'",
    Outcome.TIMEOUT: "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE)",
    Outcome.WRONG_RESULT: "# Out of bounds values : 1024 FAILED",
    Outcome.SUBSTITUTED: "NCCL ran ring/simple where tree/ll128 was forced",
}
ENDINGS = ("tuned", "tuned", "tuned", "kept", "kept", "undecided", "interrupted")
"""How studies end, by chance."""

USUAL = 0.85
"""How often a pair ends as it usually does: most results are confirmed when they are tuned again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is written.

    Attributes:
        studies, measurements: how many in all, about.
        long: trials of the one long study.
        replays: recorded landscapes that are searched, see `REPLAYED`.
        hostile: with `HOSTILE` names.
    """

    studies: int = 2000
    measurements: int = 1_000_000
    long: int = 10_000
    replays: int = 3
    hostile: bool = True


SMALL = Size(studies=60, measurements=6_000, long=600, replays=0)
"""For tests: seconds."""


RANGES = (
    (0, 256 << 10, Algorithm.TREE, Protocol.LL, 8),
    ((256 << 10) + 1, 8 * MIB, Algorithm.TREE, Protocol.LL128, 16),
    (8 * MIB + 1, None, Algorithm.RING, Protocol.SIMPLE, 24),
)
"""Rules of the policies: first and last size, algorithm of all_reduce, protocol, channels."""

DECISIONS = {
    "tuned": (Decision.TUNED, "communication is faster by {:+.1f} % in {} blocks"),
    "kept": (Decision.KEEP_DEFAULT, "a gain of 2 % is refuted: {:+.1f} % in {} blocks"),
    "undecided": (Decision.UNDECIDED, "neither proven nor refuted: {:+.1f} % in {} blocks"),
}
"""How a study ends -> its decision and the reason, given the gain and the number of blocks."""


def own_clusters() -> list[Cluster]:
    """Return clusters that somebody could have added; the last ones have the hostile names."""
    hall_a = replace(
        sample_cluster("hall-a", nodes=4),
        gpus_per_node=8,
        gpu="H100-SXM5-80GB",
        compute_capability=90,
        link_class="nvswitch",
        link_gbps=450.0,
        nics_per_node=8,
        nic_gbps=50.0,
        topology_hash="5d0f1b7c92aa",
        driver="570.86.15",
        description="Four nodes of hall A, rail-optimised NDR.",
    )
    hall_b = replace(hall_a, name="hall-b", gpu="H200-SXM5-141GB", driver="580.65.06", description="Hall B.")
    lab = replace(hall_a, name="lab", nodes=1, gpu="A100-SXM4-80GB", compute_capability=80, link_gbps=300.0)
    lab = replace(lab, fabric="none", nics_per_node=0, nic_gbps=0.0, topology_hash="", description="The lab.")
    hostile = replace(hall_a, nodes=2, gpus_per_node=4, description="A name like this happens.")
    return [hall_a, hall_b, lab, *(replace(hostile, name=name) for name in HOSTILE[:3])]


def own_workloads(shipped: Sequence[Workload]) -> list[Workload]:
    """Return workloads that somebody could have imported, with recorded times; the last ones have hostile names."""
    origin = Provenance(
        source="kineto",
        created="2026-10-02",
        world_size=32,
        ranks_read=(0, 8, 16, 24),
        steps=20,
        detail={"framework": "FSDP2", "torch": "2.9.1", "files": "rank0.json.gz and 3 more"},
        notes=("Generated for tests, not recorded.",),
    )
    by_name = {workload.name: workload for workload in shipped}
    workloads = []
    for name, base, factor, step_ms in (
        ("chat-13b", "llama-7b", 1.9, 840.0),
        ("chat-13b-r2", "llama-7b", 1.7, 802.0),
        ("search-encoder", "bert-large", 0.8, 212.0),
        ("vision-nightly", "resnet101", 1.0, 148.0),
        (HOSTILE[0], "bert", 1.0, 90.0),
        (HOSTILE[3], "bert", 1.0, 90.0),
    ):
        messages = []
        for calls in by_name[base].messages:
            size_bytes = calls.message.size_bytes
            message = replace(calls.message, size_bytes=max(8, int(size_bytes * factor) // 8 * 8))
            messages.append(replace(calls, message=message, recorded_us=30.0 + size_bytes * factor / 90e3))
        sent_us = sum((calls.recorded_us or 0.0) * calls.calls_per_step for calls in messages)
        workload = Workload(name=name, provenance=origin, messages=tuple(messages))
        workloads.append(replace(workload, step_time_us=max(1.4 * sent_us, 1e3 * step_ms), exposed_us=0.31 * sent_us))
    return workloads


class Times:
    """Made-up times of one pair under one release: a latency and a bandwidth per setting, with noise."""

    def __init__(self, cluster: Cluster, key: str) -> None:
        self.random = random.Random(key)
        links = cluster.link_gbps if cluster.nodes == 1 else cluster.nics_per_node * cluster.nic_gbps
        self.latency_us, self.gbps = 12.0 + 9.0 * math.log2(cluster.world_size), 0.42 * links
        self.gain = {"kept": 1.0, "undecided": 1.015}.get(key.rpartition("/")[2], 1.03 + 0.16 * self.random.random())
        self._factor: dict[Setting, tuple[float, float]] = {DEFAULT: (1.0, 1.0)}

    def time_us(self, setting: Setting, message: Message, *, is_policy: bool) -> float:
        drawn = (self.random.uniform(0.95 / self.gain, 1.6), self.random.uniform(0.5, 1.0))
        latency, share = (1 / self.gain, self.gain) if is_policy else self._factor.setdefault(setting, drawn)
        time_us = latency * self.latency_us + message.size_bytes / (self.gbps * share) / 1e3
        return time_us * self.random.lognormvariate(0.0, 0.012)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The rows of a study that many studies share, without its id."""

    study: Study
    trials: list[dict[str, Any]]
    measured: list[dict[str, Any]]
    published: Recommendation | None


def build_policy(workload: Workload) -> Policy:
    """Return a policy with up to three ranges per collective."""
    rules = [
        Rule(
            collective=collective,
            min_bytes=start,
            max_bytes=end,
            algorithm=algorithm if collective is Collective.ALL_REDUCE else Algorithm.RING,
            protocol=protocol,
            channels=channels,
        )
        for collective in sorted(collective for collective in workload.collectives if collective.is_tunable)
        for start, end, algorithm, protocol, channels in RANGES
    ]
    return Policy(rules=tuple(rules))


def build_template(workload: Workload, cluster: Cluster, ending: str, *, seed: int, searched: int) -> Template:
    """Make up one study."""
    is_measured = bool(cluster.topology_hash) or cluster.name == "lab" or cluster.name in HOSTILE
    is_recorded = not is_measured and "x" in cluster.name.rpartition("-")[2]
    study = Study(
        id="",
        name="",
        cluster=cluster,
        launcher="slurm" if is_measured else "replay" if is_recorded else "simulate",
        simulated=not is_measured and not is_recorded,
        process_wide=(),
        seed=seed,
        workload=replace(workload, messages=workload.messages[:12]).placed(
            nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node
        ),
        state=StudyState.DONE,
        reason="converged, 10 trials without a better one",
    )
    times = Times(cluster, f"{cluster.name}/{workload.name}/{cluster.nccl_version}/{seed}/{ending}")
    policy = build_policy(study.workload)
    rows = [
        _build_trial(study, times, number, DEFAULT if number % 12 == 0 else times.random.choice(SETTINGS))
        for number in range(searched)
    ]
    for block in range(PROOF_LAUNCHES if ending in DECISIONS else 0):
        for arm in (Arm.DEFAULT, Arm.TABLE)[:: -1 if block % 2 else 1]:
            trial = _build_trial(study, times, len(rows), DEFAULT, policy=policy if arm is Arm.TABLE else None, arm=arm)
            rows.append(replace(trial, block=block))
    measured = [
        measurement_row("", row.number, position, measurement)
        for row in rows
        for position, measurement in enumerate(row.result.measurements)
    ]
    published = _judge(study, policy, rows, ending, times.gain) if ending in DECISIONS else None
    return Template(study=study, trials=[trial_row("", row) for row in rows], measured=measured, published=published)


def _build_trial(
    study: Study, times: Times, number: int, setting: Setting, *, policy: Policy | None = None, arm: Arm | None = None
) -> Trial:
    trial = Trial(
        number=number,
        phase=Phase.PROVE if arm else Phase.SEARCH,
        setting=setting,
        repeat=0,
        result=TrialResult(outcome=Outcome.OK, wall_s=9.5, place="node[01-04]"),
        score_us=None,
        arm=arm,
        policy=policy,
    )
    if arm is None and number and times.random.random() < 0.06:
        outcome = times.random.choice(list(FAILURES))
        return replace(trial, result=TrialResult(outcome=outcome, detail=FAILURES[outcome], wall_s=31.0))
    score_us, measured = 0.0, []
    for calls in study.workload.messages:
        time_us = times.time_us(setting, calls.message, is_policy=policy is not None)
        measurement = Measurement(message=calls.message, samples_us=(round(time_us, 3), round(1.01 * time_us, 3)))
        measured.append(measurement)
        score_us += calls.calls_per_step * measurement.time_us
    return replace(trial, score_us=score_us, result=replace(trial.result, measurements=tuple(measured)))


def _judge(study: Study, policy: Policy, rows: list[Trial], ending: str, gain: float) -> Recommendation:
    decision, reason = DECISIONS[ending]
    default_us, policy_us = (
        sorted(row.score_us or 0.0 for row in rows if row.arm is arm)[PROOF_LAUNCHES // 2]
        for arm in (Arm.DEFAULT, Arm.TABLE)
    )
    speedup, blocks = default_us / policy_us, PROOF_LAUNCHES // 2
    half = 0.008 + 0.02 * abs(math.sin(97 * gain)) + (0.02 if decision is Decision.UNDECIDED else 0.0)
    if decision is Decision.TUNED:
        half = min(half, 0.8 * (speedup - 1))
    verdict = Verdict(
        decision=decision,
        reason=reason.format(100 * (speedup - 1), blocks),
        speedup=speedup,
        interval=(speedup - half, speedup + half),
        blocks=blocks,
        default_us=default_us,
        policy_us=policy_us,
    )
    return replace(
        sample_recommendation("", cluster=study.cluster.name, model=study.workload.name),
        workload_digest=study.workload.digest(),
        collectives=study.workload.collectives,
        fingerprint=study.cluster.fingerprint(),
        table=PolicyVerdict(policy=policy, verdict=verdict),
        simulated=study.simulated,
        launcher=study.launcher,
        recorded=study.label if study.launcher == "replay" else "",
        dtypes=study.workload.dtypes,
    )


def _id(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:12]


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def revision_row(revision: Recommendation, *, state: str = "active") -> dict[str, Any]:
    """Return a revision as a row of its table."""
    columns = ("id", "revision", "study", "cluster", "model", "created")
    return {
        **{name: getattr(revision, name) for name in columns},
        "fingerprint": revision.fingerprint.digest(),
        "origin": revision.origin.value,
        "document": to_text(revision.to_document()),
        "state": state,
        "pinned": False,
        "unverified": False,
    }


class _Writer:
    """Writes studies in bulk, oldest first, with the revisions that `publish` would have given them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.revisions: dict[tuple[str, str, str], int] = {}
        self.newest: dict[tuple[str, str], Recommendation] = {}

    def write(self, planned: Sequence[tuple[Template, Study]]) -> None:
        rows: dict[Any, list[dict[str, Any]]] = {studies: [], trials: [], measurements: [], recommendations: []}
        for template, study in planned:
            rows[studies].append(study_row(study))
            rows[trials] += [{**row, "study": study.id, "started": study.created} for row in template.trials]
            rows[measurements] += [{**row, "study": study.id} for row in template.measured]
            if template.published is not None and study.state is StudyState.DONE:
                rows[recommendations].append(self._publish(template.published, study))
        action = {"who": "nina", "why": "", "action": Action.PUBLISHED.value}
        rows[history] = [
            {**{name: row[name] for name in ("cluster", "model", "created")}, "recommendation": row["id"], **action}
            for row in rows[recommendations]
        ]
        with self.store._database.alone() as connection:
            for table, values in rows.items():
                if values:
                    connection.execute(insert(table), values)

    def _publish(self, base: Recommendation, study: Study) -> dict[str, Any]:
        key = (base.cluster, base.model, base.fingerprint.digest())
        number = self.revisions[key] = self.revisions.get(key, 0) + 1
        id = _id("revision", study.id)
        revision = replace(base, id=id, revision=number, study=study.id, created=study.updated)
        self.newest[base.cluster, base.model] = revision
        return revision_row(revision)


def fill(store: Store, size: Size = SMALL, *, now: datetime | None = None) -> None:
    """Fill an empty store; the same size and time give the same content, but for replays."""
    moment, chance = now or datetime.now(UTC), random.Random(7)
    for cluster in own_clusters():
        if size.hostile or cluster.name not in HOSTILE:
            store.clusters.add(cluster)
    for workload in own_workloads([workload for workload, _ in store.workloads.entries()]):
        if size.hostile or workload.name not in HOSTILE:
            store.workloads.add(workload)
    for model, name in REPLAYED[: size.replays]:
        target = ncclt.Target(cluster=name, launcher="replay")
        ncclt.tune(model, target, ncclt.Budget(trials=24, seed=0), storage=store.url)
    clusters = [cluster for cluster, _ in store.clusters.entries()]
    models = [workload for workload, _ in store.workloads.entries()]
    pairs = [
        (cluster, model)
        for cluster in clusters
        for model in models
        if (cluster.name in HOSTILE) == (model.name in HOSTILE)
        and chance.random() < (0.3 if "x" in cluster.name else 0.85)
    ]
    pairs.sort(key=lambda pair: not pair[0].topology_hash)  # the first ones are measured, and surely in use
    writer, planned = _Writer(store), _plan(pairs, size, moment, chance)
    while batch := list(itertools.islice(planned, 100)):
        writer.write(batch)
    writer.write([_plan_long(store, size.long, moment)])
    _write_records(store, writer, moment)
    _write_rollouts(store, writer, moment)


def _plan(
    pairs: Sequence[tuple[Cluster, Workload]], size: Size, moment: datetime, chance: random.Random
) -> Iterator[tuple[Template, Study]]:
    """Give the studies of a year, oldest first; the last ones are running."""
    templates: dict[object, Template] = {}
    running = max(3, size.studies // 400)
    states = {"running": StudyState.RUNNING, "interrupted": StudyState.INTERRUPTED}
    reasons = {"running": "", "interrupted": "interrupted by SIGTERM"}
    for number in range(size.studies):
        cluster, model = pairs[number % len(pairs)] if number < len(pairs) else chance.choice(pairs)
        days = 360 * (1 - (number + 1) / (size.studies + 1)) ** 1.3
        age = min(len(VERSIONS) - 1, int((360 - days) / 360 * len(VERSIONS)))
        usual = ENDINGS[int(_id(cluster.name, model.name), 16) % len(ENDINGS[:-1])]
        is_running = number >= size.studies - running
        ending = "running" if is_running else usual if chance.random() < USUAL else chance.choice(ENDINGS)
        key = (cluster.name, model.name, VERSIONS[age], ending, chance.randrange(2))
        if key not in templates:
            launches = round(size.measurements / size.studies / min(12, len(model.messages)))
            searched = max(14, launches - (2 * PROOF_LAUNCHES if ending in DECISIONS else 0))
            placed = replace(cluster, nccl_version=VERSIONS[age])
            templates[key] = build_template(model, placed, ending, seed=key[-1], searched=searched)
        template = templates[key]
        ago = timedelta(minutes=5 + 7 * (size.studies - number)) if is_running else timedelta(days=days, minutes=5)
        study = replace(
            template.study,
            id=_id(number),
            name=f"{model.name[:40]}-{cluster.name[:40]}-{number}",
            state=states.get(ending, StudyState.DONE),
            reason=reasons.get(ending, template.study.reason),
            created=_iso(moment - ago),
            updated=_iso(moment - ago + timedelta(minutes=4 if is_running else 40)),
        )
        yield template, study


def _plan_long(store: Store, count: int, moment: datetime) -> tuple[Template, Study]:
    """Return a study of many trials."""
    workload, cluster = store.workloads.get("search-encoder"), store.clusters.get("hall-a")
    workload = replace(workload, messages=workload.messages[:5])
    template = build_template(workload, cluster, "tuned", seed=99, searched=count - 2 * PROOF_LAUNCHES)
    study = replace(template.study, id="10000" + "a" * 7, name="ten-thousand-trials")
    ends = (moment - timedelta(days=2), moment - timedelta(hours=18))
    return template, replace(study, created=_iso(ends[0]), updated=_iso(ends[1]))


def _write_records(store: Store, writer: _Writer, moment: datetime) -> None:
    """Add rechecks, attestations of jobs, and preflights."""
    for number, revision in enumerate(writer.newest.values()):
        when = _iso(moment - timedelta(hours=3 + number))
        kind = number % 9
        if kind in (2, 5):
            recheck = Recheck(
                id=_id("recheck", revision.id),
                recommendation=revision.id,
                cluster=revision.cluster,
                model=revision.model,
                freshness=Freshness.STALE if kind == 5 else Freshness.FRESH,
                changes=(),
                launches=6,
                reasons=("the gain is lost: 1.07 before, 0.99 now",) if kind == 5 else (),
                launcher="slurm",
                created=when,
                driver="570.86.15",
            )
            store.records.add_recheck(recheck)
        if kind in (0, 2, 3) and revision.table.verdict.decision is Decision.TUNED:
            store.records.add_attestation(_attest(revision, when, differing=kind == 3))
    for hall, cluster in enumerate(own_clusters()[:2]):
        for week in range(8, 0, -1):
            when = _iso(moment - timedelta(days=7 * week, hours=hall))
            weak = {3: ("n02",), 6: ("n01", "n03")}.get(week, ())
            store.records.add_preflight(_examine(cluster, weak, when))


def _write_rollouts(store: Store, writer: _Writer, moment: datetime) -> None:
    """Roll out a candidate for each tuned workload of hall B; the last one has as many jobs as decide one."""
    newest = [revision for revision in writer.newest.values() if revision.cluster == "hall-b"]
    tuned = [revision for revision in newest if revision.table.verdict.decision is Decision.TUNED]
    for number, revision in enumerate(tuned, 1):
        policy = replace(revision.table.policy, rules=revision.table.policy.rules[1:])
        candidate = replace(revision, id=_id("candidate", revision.id), table=replace(revision.table, policy=policy))
        store.revisions.publish(candidate, by=Actor(who="nina"), for_rollout=True)
        id = store.revisions.approve(candidate.id, Actor(who="olga"), percent=50, max_cost=1.0)
        rollout, chance = store.revisions.rollout(id), random.Random(number)
        jobs = range(240 * number // len(tuned))
        starts = [rollout.start(str(job), issued_s=moment.timestamp() - 60.0 * (300 - job)) for job in jobs]
        times = [
            JobTime(
                rollout=rollout.id,
                job=start.job,
                recommendation=start.recommendation,
                step_us=1e5 * chance.gauss(0.98 if start.recommendation == candidate.id else 1.0, 0.04),
                steps=20,
                waited_s=50.0,
            )
            for start in starts
            if chance.random() < 0.97
        ]
        with store._database.alone() as connection:
            connection.execute(insert(job_starts), [asdict(row) | {"running": "0", "created": ""} for row in starts])
            connection.execute(insert(job_times), [asdict(row) for row in times])
        verdict = judge_stored(store, rollout)
        store.revisions.settle_arms(rollout.id, [arm.to_arm() for arm in verdict.arms], Actor(who="guard"))


def _attest(revision: Recommendation, when: str, *, differing: bool) -> Attestation:
    place = revision.fingerprint
    delivered = DeliveredPolicy(
        recommendation=revision.id,
        cluster=revision.cluster,
        model=revision.model,
        nccl_version=place.nccl_version,
        ranks=place.world_size,
        form=Form.TABLE,
        policy=revision.table.policy,
    )
    calls = ObservedCall(
        collective=revision.table.policy.rules[0].collective,
        size_bytes=1 << 16,
        group_size=place.world_size,
        choice="tree/ll/8",
        outcome=CallOutcome.APPLIED,
        calls=4000,
    )
    refused = replace(calls, size_bytes=32 * MIB, choice="ring/simple/24", outcome=CallOutcome.UNAVAILABLE, calls=31)
    source = LogEvidence(
        kind="plugin-report",
        nccl_version=place.nccl_version,
        table=revision.id,
        checksum="0" * 16,
        count=place.world_size,
    )
    observed = Observed(sources=(source,), calls=(calls, refused)[: 1 + differing], variables={}, hosts=place.nodes)
    return attest(delivered, observed, created=when)


def _examine(cluster: Cluster, weak: tuple[str, ...], when: str) -> Preflight:
    """Return a preflight that names a weak node or link, if there is one."""
    hosts = tuple(f"n{number:02d}" for number in range(1, cluster.nodes + 1))
    ranks, expected_gbps = cluster.world_size, 0.8 * cluster.nics_per_node * cluster.nic_gbps
    busbw_gbps = (0.55 if weak else 0.97) * expected_gbps
    part = Part.NODE if len(weak) == 1 else Part.LINK
    finding = FabricFinding(
        part=part, hosts=weak, busbw_gbps=busbw_gbps, reference_gbps=0.97 * expected_gbps, launches=3
    )
    time_us = (1 << 30) / busbw_gbps / 1e3 * 2 * (ranks - 1) / ranks
    reading = ProbeReading(
        section=Section(hosts=hosts),
        ranks=ranks,
        repeat=0,
        outcome=Outcome.OK,
        times_us=((1 << 30, time_us),),
        expected_gbps=expected_gbps,
    )
    return Preflight(
        id=_id("preflight", cluster.name, when),
        created=when,
        state=State.DEGRADED if weak else State.HEALTHY,
        simulated=True,
        cluster=cluster.name,
        fingerprint=cluster.fingerprint().digest(),
        launcher="simulate",
        benchmark="simulated",
        hosts=hosts,
        gpus_per_node=cluster.gpus_per_node,
        source="from link speeds",
        expected=(ExpectedSize(size_bytes=1 << 30, busbw_gbps=expected_gbps),),
        tolerance=0.15,
        findings=(finding,) if weak else (),
        readings=(reading,),
        wall_s=9.0,
    )
