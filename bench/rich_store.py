"""Fill a store with everything that the pages have to show, for their bench, their tests and the pictures in the docs.

    python bench/rich_store.py FILE.db [--studies 2000] [--measurements 1000000] [--long 10000] [--plain]

The catalogue's clusters and workloads and some of our own; for each pair that is in use a year of studies under several
releases of NCCL: tuned, kept, undecided, stale, superseded, interrupted, running, with failed trials, rechecks, jobs
and preflights; one study of many trials; names that try to break a page. `--replays` recorded landscapes are really
searched, by `ncclt.tune`; all other times are made up here and prove nothing. Bulk rows are written by the store's own
row functions, in one transaction per hundred studies.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import insert

import ncclt
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.attestation import CallOutcome, DeliveredPolicy, Form, LogEvidence, Observed, ObservedCall
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.recheck import Freshness, Recheck
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation, Verdict
from ncclt.core.revision import Action, Actor
from ncclt.core.rollout import JobTime
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Phase, Study, StudyState, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.core.workload import Provenance, Workload
from ncclt.deliver.attest import attest
from ncclt.health.preflight.checkup import SIZES, Depth, PreflightRequest, preflight
from ncclt.health.preflight.expectation import expectation
from ncclt.health.preflight.probes import Probes
from ncclt.prove.rollout import judge_stored
from ncclt.store import Store, open_store
from ncclt.store.documents import to_text
from ncclt.store.studies import study_row
from ncclt.store.tables import history, job_starts, job_times, measurements, recommendations, studies, trials
from ncclt.store.trials import measurement_row, trial_row

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "fakes"))
from fleet import Fleet, parse_fault

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


def own_clusters() -> list[Cluster]:
    """Return clusters that somebody could have added; the last ones have the hostile names."""
    base = Cluster(
        name="hall-a",
        nodes=4,
        gpus_per_node=8,
        gpu="H100-SXM5-80GB",
        compute_capability=90,
        link_class="nvswitch",
        link_gbps=450.0,
        fabric="infiniband",
        nics_per_node=8,
        nic_gbps=50.0,
        gpudirect=True,
        nccl_version="2.28.9",
        topology_hash="5d0f1b7c92aa",
        driver="570.86.15",
        description="Four nodes of hall A, rail-optimised NDR.",
        sources=("generated for tests",),
    )
    return [
        base,
        replace(base, name="hall-b", gpu="H200-SXM5-141GB", driver="580.65.06", description="Hall B."),
        replace(
            base,
            name="lab",
            nodes=1,
            gpu="A100-SXM4-80GB",
            compute_capability=80,
            link_gbps=300.0,
            fabric="none",
            nics_per_node=0,
            nic_gbps=0.0,
            topology_hash="",
            description="The box in the lab.",
        ),
        *(
            replace(base, name=name, nodes=2, gpus_per_node=4, description="A name like this happens.")
            for name in HOSTILE[:3]
        ),
    ]


def own_workloads(shipped: Sequence[Workload]) -> list[Workload]:
    """Return workloads that somebody could have imported, with recorded times; the last ones have hostile names."""
    found = []
    for name, of, factor, step_ms in (
        ("chat-13b", "llama-7b", 1.9, 840.0),
        ("chat-13b-r2", "llama-7b", 1.7, 802.0),
        ("search-encoder", "bert-large", 0.8, 212.0),
        ("vision-nightly", "resnet101", 1.0, 148.0),
        (HOSTILE[0], "bert", 1.0, 90.0),
        (HOSTILE[3], "bert", 1.0, 90.0),
    ):
        base = next(one for one in shipped if one.name == of)
        calls = tuple(
            replace(
                one,
                message=replace(one.message, size_bytes=max(8, int(one.message.size_bytes * factor) // 8 * 8)),
                recorded_us=30.0 + one.message.size_bytes * factor / 90e3,
            )
            for one in base.messages
        )
        sent = sum((one.recorded_us or 0.0) * one.calls_per_step for one in calls)
        origin = Provenance(
            source="kineto",
            created="2026-10-02",
            world_size=32,
            ranks_read=(0, 8, 16, 24),
            steps=20,
            detail={"framework": "FSDP2", "torch": "2.9.1", "files": "rank0.json.gz and 3 more"},
            notes=("Generated for tests, not recorded.",),
        )
        found.append(
            Workload(
                name=name,
                provenance=origin,
                messages=calls,
                step_time_us=max(1.4 * sent, 1e3 * step_ms),
                exposed_us=0.31 * sent,
            )
        )
    return found


class Times:
    """Made-up times of one pair under one release: a latency and a bandwidth per setting, with noise."""

    def __init__(self, cluster: Cluster, key: str) -> None:
        self.random = random.Random(key)
        links = cluster.link_gbps if cluster.nodes == 1 else cluster.nics_per_node * cluster.nic_gbps
        self.latency_us, self.gbps = 12.0 + 9.0 * math.log2(cluster.world_size), 0.42 * links
        self.gain = {"kept": 1.0, "undecided": 1.015}.get(key.rpartition("/")[2], 1.03 + 0.16 * self.random.random())
        self._factor: dict[Setting, tuple[float, float]] = {DEFAULT: (1.0, 1.0)}

    def time_us(self, setting: Setting, message: Message, *, is_policy: bool = False) -> float:
        latency, share = self._factor.setdefault(
            setting, (self.random.uniform(0.95 / self.gain, 1.6), self.random.uniform(0.5, 1.0))
        )
        base = self.latency_us + message.size_bytes / self.gbps / 1e3
        if is_policy:
            time = base / self.gain
        else:
            time = latency * self.latency_us + message.size_bytes / (self.gbps * share) / 1e3
        return time * self.random.lognormvariate(0.0, 0.012)


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The rows of a study that many studies share, without its id."""

    study: Study
    trials: list[dict[str, Any]]
    measured: list[dict[str, Any]]
    published: Recommendation | None


def policy_of(workload: Workload) -> Policy:
    """Return a policy with up to three ranges per collective."""
    rules = []
    for collective in sorted(c for c in workload.collectives if c.is_tunable):
        tree = Algorithm.TREE if collective is Collective.ALL_REDUCE else Algorithm.RING
        rules += [
            Rule(collective=collective, max_bytes=256 << 10, algorithm=tree, protocol=Protocol.LL, channels=8),
            Rule(
                collective=collective,
                min_bytes=(256 << 10) + 1,
                max_bytes=8 * MIB,
                algorithm=tree,
                protocol=Protocol.LL128,
                channels=16,
            ),
            Rule(
                collective=collective,
                min_bytes=8 * MIB + 1,
                algorithm=Algorithm.RING,
                protocol=Protocol.SIMPLE,
                channels=24,
            ),
        ]
    return Policy(rules=tuple(rules))


def template(workload: Workload, cluster: Cluster, ending: str, *, seed: int, searched: int) -> Template:
    """Make up one study."""
    simulated, launcher = origin_of(cluster)
    study = Study(
        id="",
        name="",
        cluster=cluster,
        launcher=launcher,
        simulated=simulated,
        process_wide=(),
        seed=seed,
        workload=replace(workload, messages=workload.messages[:12]).placed(
            nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node
        ),
        state=StudyState.DONE,
        reason="converged, 10 trials without a better one",
    )
    times = Times(cluster, f"{cluster.name}/{workload.name}/{cluster.nccl_version}/{seed}/{ending}")
    policy, rows = policy_of(study.workload), [_trial(study, times, 0, DEFAULT)]
    rows += [
        _trial(study, times, number, DEFAULT if number % 12 == 0 else times.random.choice(SETTINGS))
        for number in range(1, searched)
    ]
    proven = ending in ("tuned", "kept", "undecided")
    launches = PROOF_LAUNCHES if proven else 0
    for block in range(launches):
        arms = (Arm.DEFAULT, Arm.TABLE) if block % 2 == 0 else (Arm.TABLE, Arm.DEFAULT)
        for arm in arms:
            rows.append(_trial(study, times, len(rows), DEFAULT, arm=arm, block=block, policy=policy))
    published = _published(study, policy, rows, ending, times.gain) if proven else None
    return Template(
        study=study,
        trials=[trial_row("", row) for row in rows],
        measured=[
            measurement_row("", row.number, position, one)
            for row in rows
            for position, one in enumerate(row.result.measurements)
        ],
        published=published,
    )


def origin_of(cluster: Cluster) -> tuple[bool, str]:
    """Return whether the studies of a cluster are simulated, and their launcher."""
    if cluster.topology_hash or cluster.name == "lab" or cluster.name in HOSTILE:
        return False, "slurm"
    return (False, "replay") if "x" in cluster.name.rpartition("-")[2] else (True, "simulate")


def _trial(
    study: Study,
    times: Times,
    number: int,
    setting: Setting,
    *,
    arm: Arm | None = None,
    block: int = 0,
    policy: Policy | None = None,
) -> Trial:
    phase = Phase.PROVE if arm else Phase.SEARCH
    launched = policy if arm is Arm.TABLE else None
    if arm is None and number and times.random.random() < 0.06:
        outcome = times.random.choice(list(FAILURES))
        result = TrialResult(outcome=outcome, detail=FAILURES[outcome], wall_s=31.0)
        return Trial(number=number, phase=phase, setting=setting, repeat=0, result=result, score_us=None)
    found = []
    for calls in study.workload.messages:
        time = times.time_us(setting, calls.message, is_policy=launched is not None)
        found.append(Measurement(message=calls.message, samples_us=(round(time, 3), round(1.01 * time, 3))))
    score = sum(calls.calls_per_step * one.time_us for calls, one in zip(study.workload.messages, found, strict=True))
    return Trial(
        number=number,
        phase=phase,
        setting=setting,
        repeat=0,
        score_us=score,
        arm=arm,
        block=block,
        policy=launched,
        result=TrialResult(outcome=Outcome.OK, measurements=tuple(found), wall_s=9.5, place="node[01-04]"),
    )


def _published(study: Study, policy: Policy, rows: list[Trial], ending: str, gain: float) -> Recommendation:
    decision = {"tuned": Decision.TUNED, "kept": Decision.KEEP_DEFAULT, "undecided": Decision.UNDECIDED}[ending]
    default = sorted(row.score_us or 0.0 for row in rows if row.arm is Arm.DEFAULT)[PROOF_LAUNCHES // 2]
    tuned = sorted(row.score_us or 0.0 for row in rows if row.arm is Arm.TABLE)[PROOF_LAUNCHES // 2]
    speedup = default / tuned
    half = 0.008 + 0.02 * abs(math.sin(97 * gain)) + (0.02 if decision is Decision.UNDECIDED else 0.0)
    if decision is Decision.TUNED:
        half = min(half, 0.8 * (speedup - 1))
    percent = 100 * (speedup - 1)
    reason = {
        Decision.TUNED: f"communication is faster by {percent:+.1f} % in {PROOF_LAUNCHES // 2} blocks",
        Decision.KEEP_DEFAULT: f"a gain of 2 % is refuted: {percent:+.1f} % in {PROOF_LAUNCHES // 2} blocks",
        Decision.UNDECIDED: f"neither proven nor refuted after {PROOF_LAUNCHES // 2} blocks: {percent:+.1f} %",
    }[decision]
    verdict = Verdict(
        decision=decision,
        reason=reason,
        speedup=speedup,
        interval=(speedup - half, speedup + half),
        blocks=PROOF_LAUNCHES // 2,
        default_us=default,
        policy_us=tuned,
    )
    return Recommendation(
        id="",
        revision=0,
        study="",
        cluster=study.cluster.name,
        model=study.workload.name,
        workload_digest=study.workload.digest(),
        collectives=study.workload.collectives,
        fingerprint=study.cluster.fingerprint(),
        table=PolicyVerdict(policy=policy, verdict=verdict),
        variables=None,
        simulated=study.simulated,
        launcher=study.launcher,
        created="",
        recorded=study.label if study.launcher == "replay" else "",
        dtypes=study.workload.dtypes,
    )


def _id(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:12]


class _Writer:
    """Writes studies in bulk, oldest first, with the revisions that `publish` would have given them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.revisions: dict[tuple[str, str, str], int] = {}
        self.newest: dict[tuple[str, str], Recommendation] = {}

    def write(self, made: Sequence[tuple[Template, Study]]) -> None:
        rows: dict[Any, list[dict[str, Any]]] = {studies: [], trials: [], measurements: [], recommendations: []}
        for of, study in made:
            rows[studies].append(study_row(study))
            rows[trials] += [{**row, "study": study.id, "started": study.created} for row in of.trials]
            rows[measurements] += [{**row, "study": study.id} for row in of.measured]
            if of.published is not None and study.state is StudyState.DONE:
                rows[recommendations].append(self._recommended(of.published, study))
        rows[history] = [
            {
                "cluster": row["cluster"],
                "model": row["model"],
                "recommendation": row["id"],
                "who": "nina",
                "why": "",
                "action": Action.PUBLISHED.value,
                "created": row["created"],
            }
            for row in rows[recommendations]
        ]
        with self.store._database.alone() as connection:
            for table, values in rows.items():
                if values:
                    connection.execute(insert(table), values)

    def _recommended(self, base: Recommendation, study: Study) -> dict[str, Any]:
        fingerprint = base.fingerprint.digest()
        key = (base.cluster, base.model, fingerprint)
        self.revisions[key] = self.revisions.get(key, 0) + 1
        one = replace(
            base, id=_id("revision", study.id), revision=self.revisions[key], study=study.id, created=study.updated
        )
        self.newest[base.cluster, base.model] = one
        return {
            "id": one.id,
            "revision": one.revision,
            "study": one.study,
            "cluster": one.cluster,
            "model": one.model,
            "fingerprint": fingerprint,
            "created": one.created,
            "origin": one.origin.value,
            "document": to_text(one.to_document()),
            "state": "active",
            "pinned": False,
            "unverified": False,
        }


def fill(store: Store, size: Size = SMALL, *, now: datetime | None = None) -> None:
    """Fill an empty store; the same size and time give the same content, but for replays."""
    moment, chance = now or datetime.now(UTC), random.Random(7)
    for cluster in own_clusters():
        if size.hostile or cluster.name not in HOSTILE:
            store.clusters.add(cluster)
    for one in own_workloads([workload for workload, _ in store.workloads.entries()]):
        if size.hostile or one.name not in HOSTILE:
            store.workloads.add(one)
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
    writer = _Writer(store)
    made: list[tuple[Template, Study]] = []
    for planned in _planned(pairs, size, moment, chance):
        made.append(planned)
        if len(made) == 100:
            writer.write(made)
            made = []
    writer.write(made)
    _write_long(writer, clusters, models, size.long, moment)
    _write_records(store, writer, moment)
    _write_rollouts(store, writer, moment)


def _planned(
    pairs: Sequence[tuple[Cluster, Workload]], size: Size, moment: datetime, chance: random.Random
) -> Iterator[tuple[Template, Study]]:
    """Give the studies of a year, oldest first; the last ones are running."""
    known: dict[object, Template] = {}
    running = max(3, size.studies // 400)
    each = size.measurements / size.studies
    for number in range(size.studies):
        cluster, model = pairs[number % len(pairs)] if number < len(pairs) else chance.choice(pairs)
        days = 360 * (1 - (number + 1) / (size.studies + 1)) ** 1.3
        age = min(len(VERSIONS) - 1, int((360 - days) / 360 * len(VERSIONS)))
        is_running = number >= size.studies - running
        usual = ENDINGS[int(_id(cluster.name, model.name), 16) % len(ENDINGS[:-1])]
        ending = "running" if is_running else usual if chance.random() < USUAL else chance.choice(ENDINGS)
        key = (cluster.name, model.name, VERSIONS[age], ending, chance.randrange(2))
        if key not in known:
            sent = min(12, len(model.messages))
            proof = 0 if ending in ("running", "interrupted") else 2 * PROOF_LAUNCHES
            searched = max(14, round(each / sent) - proof)
            known[key] = template(
                model, replace(cluster, nccl_version=VERSIONS[age]), ending, seed=key[-1], searched=searched
            )
        of = known[key]
        state = {"running": StudyState.RUNNING, "interrupted": StudyState.INTERRUPTED}.get(ending, StudyState.DONE)
        begun = moment - timedelta(
            days=0 if is_running else days, minutes=5 + 7 * (size.studies - number if is_running else 0)
        )
        changed = begun + timedelta(minutes=4 if is_running else 40)
        yield (
            of,
            replace(
                of.study,
                id=_id(number),
                name=f"{model.name[:40]}-{cluster.name[:40]}-{number}",
                state=state,
                reason="" if is_running else "interrupted by SIGTERM" if ending == "interrupted" else of.study.reason,
                created=begun.isoformat(timespec="seconds"),
                updated=changed.isoformat(timespec="seconds"),
            ),
        )


def _write_long(
    writer: _Writer, clusters: Sequence[Cluster], models: Sequence[Workload], count: int, moment: datetime
) -> None:
    cluster = next(one for one in clusters if one.name == "hall-a")
    workload = next(one for one in models if one.name == "search-encoder")
    of = template(
        replace(workload, messages=workload.messages[:5]),
        cluster,
        "tuned",
        seed=99,
        searched=count - 2 * PROOF_LAUNCHES,
    )
    begun = moment - timedelta(days=2)
    study = replace(
        of.study,
        id="10000" + "a" * 7,
        name="ten-thousand-trials",
        created=begun.isoformat(timespec="seconds"),
        updated=(begun + timedelta(hours=30)).isoformat(timespec="seconds"),
    )
    writer.write([(of, study)])


def _write_records(store: Store, writer: _Writer, moment: datetime) -> None:
    """Add checks, jobs' attestations and preflights."""
    for number, found in enumerate(writer.newest.values()):
        when = (moment - timedelta(hours=3 + number)).isoformat(timespec="seconds")
        kind = number % 9
        if kind in (2, 5):
            stale = kind == 5
            store.records.add_recheck(
                Recheck(
                    id=_id("recheck", found.id),
                    recommendation=found.id,
                    cluster=found.cluster,
                    model=found.model,
                    freshness=Freshness.STALE if stale else Freshness.FRESH,
                    changes=(),
                    launches=6,
                    reasons=("the gain is lost: 1.07 before, 0.99 now",) if stale else (),
                    launcher="slurm",
                    created=when,
                    driver="570.86.15",
                )
            )
        if kind in (0, 2, 3) and found.table.verdict.decision is Decision.TUNED:
            store.records.add_attestation(_attested(found, when, differing=kind == 3))
    for hall, cluster in enumerate(own_clusters()[:2]):
        for week in range(8, 0, -1):
            when = (moment - timedelta(days=7 * week, hours=hall)).isoformat(timespec="seconds")
            weak = ["n02=0.55"] if week == 3 else ["n01+n02=0.7"] if week == 6 else []
            store.records.add_preflight(_examined(cluster, weak, when))


def _write_rollouts(store: Store, writer: _Writer, moment: datetime) -> None:
    """Roll out a candidate for each tuned workload of hall B; the last one has as many jobs as decide one."""
    newest = [one for one in writer.newest.values() if one.cluster == "hall-b"]
    tuned = [one for one in newest if one.table.verdict.decision is Decision.TUNED]
    for number, found in enumerate(tuned, 1):
        policy = replace(found.table.policy, rules=found.table.policy.rules[1:])
        new = replace(found, id=_id("candidate", found.id), table=replace(found.table, policy=policy))
        store.revisions.publish(new, by=Actor(who="nina"), for_rollout=True)
        rollout = store.revisions.rollout(store.revisions.approve(new.id, Actor(who="olga"), percent=50, max_cost=1.0))
        chance = random.Random(number)
        jobs = range(240 * number // len(tuned))
        starts = [rollout.start(str(job), issued_s=moment.timestamp() - 60.0 * (300 - job)) for job in jobs]
        times = [
            JobTime(
                rollout=rollout.id,
                job=start.job,
                recommendation=start.recommendation,
                step_us=1e5 * chance.gauss(0.98 if start.recommendation == new.id else 1.0, 0.04),
                steps=20,
                waited_s=50.0,
            )
            for start in starts
            if chance.random() < 0.97
        ]
        with store._database.alone() as connection:
            connection.execute(insert(job_starts), [asdict(one) | {"running": "0", "created": ""} for one in starts])
            connection.execute(insert(job_times), [asdict(one) for one in times])
        verdict = judge_stored(store, rollout)
        store.revisions.settle_arms(rollout.id, [arm.to_arm() for arm in verdict.arms], Actor(who="guard"))


def _attested(found: Recommendation, when: str, *, differing: bool) -> Any:
    place = found.fingerprint
    table = DeliveredPolicy(
        recommendation=found.id,
        cluster=found.cluster,
        model=found.model,
        nccl_version=place.nccl_version,
        nodes=place.nodes,
        ranks=place.world_size,
        form=Form.TABLE,
        policy=found.table.policy,
    )
    outcomes = [(1 << 16, "tree/ll/8", CallOutcome.APPLIED, 4000)]
    if differing:
        outcomes.append((32 * MIB, "ring/simple/24", CallOutcome.UNAVAILABLE, 31))
    uses = tuple(
        ObservedCall(
            collective=rule.collective,
            size_bytes=size,
            group_size=place.world_size,
            choice=choice,
            outcome=outcome,
            calls=calls,
        )
        for rule in found.table.policy.rules[:1]
        for size, choice, outcome, calls in outcomes
    )
    source = LogEvidence(
        kind="plugin-report",
        nccl_version=place.nccl_version,
        table=found.id,
        checksum="0" * 16,
        count=place.world_size,
    )
    return attest(table, Observed(sources=(source,), calls=uses, variables={}, hosts=place.nodes), created=when)


def _examined(cluster: Cluster, weak: Sequence[str], when: str) -> Any:
    hosts = tuple(f"n{number:02d}" for number in range(1, cluster.nodes + 1))
    expected = expectation(cluster, SIZES, tolerance=0.15)
    request = PreflightRequest(
        cluster=cluster,
        hosts=hosts,
        expectation=expected,
        launcher="simulate",
        benchmark="simulated",
        depth=Depth(full=True),
    )
    fleet = Fleet(cluster, [parse_fault(text) for text in weak])
    probes = Probes(fleet.runner, expected, clock=lambda: 0.0)
    return replace(preflight(request, probes, now=lambda: when, clock=lambda: 0.0), simulated=True)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="SQLite file to make")
    parser.add_argument("--studies", type=int, default=Size().studies)
    parser.add_argument("--measurements", type=int, default=Size().measurements)
    parser.add_argument("--long", type=int, default=Size().long, help="trials of the long study")
    parser.add_argument("--plain", action="store_true", help="leave out the names that try to break a page")
    parser.add_argument("--replays", type=int, default=Size().replays, help="recorded landscapes to search")
    arguments = parser.parse_args(argv)
    if arguments.file.exists():
        parser.error(f"{arguments.file} exists")
    if min(arguments.studies, arguments.measurements) < 10 or arguments.long < 50:
        parser.error("--studies and --measurements are at least 10, --long at least 50")
    size = Size(
        studies=arguments.studies,
        measurements=arguments.measurements,
        long=arguments.long,
        replays=arguments.replays,
        hostile=not arguments.plain,
    )
    with open_store(f"sqlite:///{arguments.file.resolve()}") as store:
        fill(store, size)


if __name__ == "__main__":
    main()
