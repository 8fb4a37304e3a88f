"""Small studies made by hand: loaded by path, because test files are no package."""

import json
import math
from dataclasses import replace

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.attestation import CallOutcome as Outcomes
from ncclt.core.attestation import DeliveredPolicy, Form, LogEvidence, Observed, ObservedCall
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.recheck import Freshness, Recheck
from ncclt.core.recommendation import Decision, PolicyVerdict, Verdict
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Phase, Study, StudyState, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.core.verification import Side, StepLaunch, Verification
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.deliver.attest import attest
from ncclt.testing.samples import sample_cluster, sample_recommendation

HOSTILE = "<script>alert('x')</script>"

TREE = Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL128, channels=8)
RING = Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=16)
LOW_LATENCY = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL)
_ALL_REDUCE = Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=16)
PLAIN = Policy(rules=(_ALL_REDUCE,))
POLICY = Policy(
    rules=(
        replace(_ALL_REDUCE, max_bytes=1 << 20, algorithm=Algorithm.TREE, protocol=Protocol.LL128, channels=8),
        replace(_ALL_REDUCE, min_bytes=(1 << 20) + 1),
    )
)


def cluster(name="leonardo", nodes=2):
    return replace(
        sample_cluster(name, nodes=nodes),
        gpu="A100-SXM-64GB",
        link_gbps=200.0,
        nccl_version="2.22.3",
        description="Two nodes of the booster partition.",
        sources=("a data sheet",),
    )


def workload(name="bert"):
    sizes = {1 << 12: 2.0, 1 << 16: 12.0, 1 << 20: 1.0, 28_351_488: 14.0, 26_214_400: 2.5}
    messages = [
        (Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size), calls)
        for size, calls in sizes.items()
    ]
    messages.append((Message(collective=Collective.BROADCAST, dtype="int64", size_bytes=64), 1.0))
    origin = Provenance(
        source="model",
        created="2026-11-20",
        detail={"framework": "DDP", "bucket_cap": "25 MiB"},
        notes=("The bucket assignment is PyTorch's own.",),
    )
    rows = tuple(MessageCalls(message=message, calls_per_step=calls) for message, calls in messages)
    return Workload(name=name, messages=rows, provenance=origin)


def study(id="5e1f00aa", name=None, model="bert", cluster_name="leonardo", **changes):
    place = cluster(cluster_name)
    values = {
        "id": id,
        "name": name or f"{model}-{cluster_name}-{id}",
        "cluster": place,
        "workload": workload(model).placed(nodes=place.nodes, gpus_per_node=place.gpus_per_node),
        "launcher": "simulate",
        "simulated": True,
        "process_wide": ("BUFFSIZE",),
        "seed": 1,
        "state": StudyState.DONE,
        "reason": "converged, 10 trials without a better one",
        "created": "2026-11-20T10:00:00+00:00",
        "updated": "2026-11-20T10:05:00+00:00",
        **changes,
    }
    return Study(**values)


def time_us(message, setting, wobble=1.0):
    """Return an invented time: a latency and a bandwidth, both depending on the setting."""
    latency, bandwidth = {
        DEFAULT: (24.0, 18.0),
        TREE: (17.0, 12.0),
        RING: (31.0, 21.0),
        LOW_LATENCY: (14.0, 5.0),
    }.get(setting, (28.0, 15.0))
    return wobble * (latency + message.size_bytes / bandwidth / 1e3)


def trial(number, setting, of, *, phase=Phase.SEARCH, wobble=1.0, arm=None, block=0, messages=None, outcome=Outcome.OK):
    result, score_us = TrialResult(outcome=outcome, detail=f"rank 3: {HOSTILE} unhandled cuda error", wall_s=31.0), None
    if outcome is Outcome.OK:
        calls = [row for row in of.workload.messages if messages is None or row.message in messages]
        times = {row.message: time_us(row.message, setting, wobble) for row in calls}
        measured = tuple(Measurement(message=m, samples_us=(t, 1.01 * t, 0.99 * t)) for m, t in times.items())
        result = TrialResult(outcome=Outcome.OK, measurements=measured, wall_s=4.2)
        score_us = sum(row.calls_per_step * times[row.message] for row in calls)
    return Trial(
        number=number,
        phase=phase,
        setting=setting,
        repeat=0,
        result=result,
        score_us=score_us,
        arm=arm,
        block=block,
        started="" if outcome is not Outcome.OK else "2026-11-20T10:01:00+00:00",
    )


def search_trials(of, count=24):
    """Return a search that begins with the default, fails twice and gets better."""
    trials = []
    for number in range(count):
        setting = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL128, channels=1 + number % 32)
        setting = {0: DEFAULT, 3: LOW_LATENCY, 6: TREE, 11: RING}.get(number, setting)
        outcome = {4: Outcome.CRASHED, 9: Outcome.TIMEOUT}.get(number, Outcome.OK)
        wobble = 1 + 0.03 * abs(math.sin(number))
        trials.append(trial(number, setting, of, wobble=wobble, outcome=outcome))
    return trials


def verify_trials(of, first, blocks=4, policy=POLICY):
    """Return A B B A blocks of default and policy; the policy takes one launch for each of its settings."""
    trials = []
    for position in range(2 * blocks):
        arms = [Arm.DEFAULT, Arm.TABLE] if position % 2 == 0 else [Arm.TABLE, Arm.DEFAULT]
        for arm in arms:
            wobble = 1 + 0.004 * math.sin(3 * position + len(arm))
            messages = [c.message for c in of.workload.messages]
            parts = {DEFAULT: messages} if arm is Arm.DEFAULT else policy.by_setting(messages)
            for setting, part in parts.items():
                number = first + len(trials)
                trials.append(
                    trial(number, setting, of, phase=Phase.PROVE, wobble=wobble, arm=arm, block=position, messages=part)
                )
    return trials


def verdict(decision=Decision.TUNED, speedup=1.083, interval=(1.061, 1.104)):
    return Verdict(
        decision=decision,
        reason=f"communication is faster by {100 * (speedup - 1):+.1f} % in 4 blocks",
        speedup=speedup,
        interval=interval,
        blocks=4,
        default_us=34_210.0,
        policy_us=34_210.0 / speedup,
    )


def recommendation(of, id="0c0ffee1", decision=Decision.TUNED, plain=True, **changes):
    variables = PolicyVerdict(policy=PLAIN, verdict=verdict(decision, speedup=1.041, interval=(1.028, 1.055)))
    values = {
        "revision": 1,
        "study": of.id,
        "workload_digest": of.workload.digest(),
        "collectives": of.workload.collectives,
        "fingerprint": of.cluster.fingerprint(),
        "table": PolicyVerdict(policy=POLICY, verdict=verdict(decision)),
        "variables": variables if plain else None,
        "simulated": of.simulated,
        "launcher": of.launcher,
        "created": "2026-11-20T10:05:00+00:00",
        **changes,
    }
    return replace(sample_recommendation(id, cluster=of.cluster.name, model=of.workload.name), **values)


def revised(found, id):
    """Return a revision with the same evidence that sets something else."""
    policy = Policy(rules=tuple(replace(rule, channels=7) for rule in found.table.policy.rules))
    return replace(found, id=id, table=replace(found.table, policy=policy))


def attestation(of, *, differing=3, **changes):
    """Return what a job told of a recommendation given as a table: some calls went otherwise, or none."""
    names = {"recommendation": of.id, "cluster": of.cluster, "model": of.model}
    version, policy = of.fingerprint.nccl_version, of.table.policy
    table = DeliveredPolicy(**names, nccl_version=version, ranks=8, form=Form.TABLE, policy=policy)
    call = {"collective": Collective.ALL_REDUCE, "group_size": 8}
    applied = {"size_bytes": 1 << 16, "choice": "tree/ll128/8", "outcome": Outcomes.APPLIED, "calls": 40}
    other = {"size_bytes": 28_351_488, "choice": "ring/simple/16", "outcome": Outcomes.UNAVAILABLE, "calls": differing}
    uses = tuple(ObservedCall(**call, **values) for values in (applied, other) if values["calls"])
    source = LogEvidence(kind="plugin-report", nccl_version=version, table=of.id, checksum="0" * 16, count=8)
    seen = Observed(sources=(source,), calls=uses, variables={}, hosts=2, **changes)
    return attest(table, seen, created="2026-11-20T12:00:00+00:00")


def verification(of):
    """Return a comparison of step times that proved a recommendation."""
    launches = tuple(
        StepLaunch(side=side, order=order, step_us=(time, time * 1.01, time * 0.99))
        for order, (side, time) in enumerate([(Side.BASE, 210_000.0), (Side.TUNED, 200_000.0)])
    )
    names = {"id": "5e7f1ed0", "recommendation": of.id, "cluster": of.cluster, "model": of.model}
    command = {"argv": ("torchrun", "train.py"), "base_env": (), "tuned_env": (), "removed_env": ()}
    counts = {"warmup": 10, "steps": 3, "ranks": 8, "hosts": 2}
    shown = verdict(speedup=1.05, interval=(1.031, 1.072))
    created = "2026-11-20T11:00:00+00:00"
    return Verification(**names, **command, **counts, launches=launches, verdict=shown, notes=(), created=created)


def add_recheck(store, of, id, freshness, *reasons, created="2026-11-21T10:00:00"):
    """Store a recheck of a recommendation."""
    names = {"recommendation": of.id, "cluster": of.cluster, "model": of.model, "launcher": "slurm"}
    finding = {"freshness": freshness, "reasons": reasons, "changes": (), "launches": 8}
    store.records.add_recheck(Recheck(id=id, **names, **finding, created=created))


def make_stale(store, recommendation, *, reason="the gain is lost"):
    """Store a recheck that found a recommendation stale."""
    add_recheck(store, store.recommendations.get(recommendation), "c1", Freshness.STALE, reason)


def open_study(store, of, trials=()):
    """Store a study with its trials, and return it."""
    store.studies.open(of)
    for row in trials:
        store.trials.add(of.id, row)
    return of


def publish(store, of, *words, **changes):
    """Store a study with a recommendation, and return that as it is published."""
    return store.revisions.publish(recommendation(open_study(store, of), *words, **changes))


def whole_trials(of):
    """Return a search and an A/B test."""
    search = search_trials(of)
    return [*search, *verify_trials(of, first=len(search))]


def fill(store):
    """Store one finished study with all its evidence, one that was searched on a machine, and a hostile one."""
    done = study()
    open_study(store, done, whole_trials(done))
    published = store.revisions.publish(recommendation(done))
    store.records.add_verification(verification(published))
    store.records.add_attestation(attestation(published, differing=0))
    store.records.add_attestation(attestation(published, notes=(HOSTILE,), tuner_lines=(HOSTILE,)))

    kept = study("7a6bbb02", model="resnet101", simulated=False, launcher="slurm")
    table = PolicyVerdict(policy=POLICY, verdict=verdict(Decision.KEEP_DEFAULT, 1.004, (0.988, 1.021)))
    open_study(store, kept, search_trials(kept, 12))
    store.revisions.publish(recommendation(kept, "0c0ffee2", Decision.KEEP_DEFAULT, plain=False, table=table))

    hostile = study("bad00003", name=HOSTILE, model=HOSTILE, cluster_name=HOSTILE, state=StudyState.RUNNING, reason="")
    open_study(store, hostile, search_trials(hostile, 8))


def store_profiles(folder):
    """Write a folder of shipped files with one cluster and one workload."""
    (folder / "clusters").mkdir(parents=True)
    (folder / "workloads").mkdir()
    (folder / "workloads" / "bert.json").write_text(json.dumps(workload().to_document()))
    lines = [f"{key} = {json.dumps(value)}" for key, value in cluster().to_document().items()]
    (folder / "clusters" / "leonardo.toml").write_text("\n".join(lines))
    return folder
