"""Small clusters, workloads, studies, trials and recommendations for tests and benchmarks."""

from __future__ import annotations

import itertools
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation, Verdict
from ncclt.core.revision import Actor
from ncclt.core.rollout import ArmState, PairedGain, RollOut, RollOutArm, Variant
from ncclt.core.setting import Setting
from ncclt.core.study import Phase, Study, StudyState, Trial
from ncclt.core.ticket import TICKET_LIFE_S, Ticket, shorten_name, sign_ticket
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.core.workload import MessageCalls, Provenance, Workload

if TYPE_CHECKING:
    from ncclt.store import Store

RING = Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=8, parameters=(("BUFFSIZE", 8388608),))


class TickingClock:
    """A clock that advances by a second whenever it is read."""

    def __init__(self) -> None:
        self._seconds = itertools.count()

    def __call__(self) -> str:
        """Return the next second of 2026."""
        now = next(self._seconds)
        return f"2026-01-01T00:{now // 60:02d}:{now % 60:02d}.000+00:00"


def sample_cluster(name: str = "pair", *, nodes: int = 2) -> Cluster:
    """Return a small cluster."""
    return Cluster(
        name=name,
        nodes=nodes,
        gpus_per_node=4,
        gpu="A100-SXM4-64GB",
        compute_capability=80,
        link_class="nvlink",
        link_gbps=100.0,
        fabric="infiniband",
        nics_per_node=4,
        nic_gbps=12.5,
        gpudirect=True,
        nccl_version="2.28.9",
        sources=("made up for tests",),
    )


def sample_workload(name: str = "toy", *, messages: int = 2) -> Workload:
    """Return a workload with some all_reduce messages."""
    calls = tuple(
        MessageCalls(
            message=Message(
                collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=2**40 >> i, group_size=8, spans_nodes=True
            ),
            calls_per_step=1.5 + i,
        )
        for i in range(messages)
    )
    return Workload(name=name, messages=calls, provenance=Provenance(source="test", detail={"model": "none"}))


def sample_study(name: str = "first", *, id: str = "abc123") -> Study:
    """Return a study that has just begun."""
    return Study(
        id=id,
        name=name,
        cluster=sample_cluster(),
        workload=sample_workload(),
        launcher="simulate",
        simulated=True,
        process_wide=("BUFFSIZE",),
        seed=2**70,
        state=StudyState.RUNNING,
    )


def sample_trial(number: int, *, setting: Setting = RING, score_us: float | None = 123.456, messages: int = 2) -> Trial:
    """Return a good trial; its samples have no short decimal form."""
    measurements = tuple(
        Measurement(message=calls.message, samples_us=(0.1 + 0.2, 1 / 3 + number, 5e-324), wrong=None if i else 2**40)
        for i, calls in enumerate(sample_workload(messages=messages).messages)
    )
    result = TrialResult(outcome=Outcome.OK, measurements=measurements, wall_s=1 / 7)
    return Trial(number=number, phase=Phase.SEARCH, setting=setting, repeat=0, result=result, score_us=score_us)


def sample_recommendation(id: str, *, cluster: str = "pair", model: str = "toy", nodes: int = 2) -> Recommendation:
    """Return a recommendation with a table and no variables; each id has a table of its own."""
    end = 4096 + 16 * (zlib.crc32(id.encode()) % 4096)
    rule = Rule(collective=Collective.ALL_REDUCE, max_bytes=end, algorithm=Algorithm.TREE, protocol=Protocol.LL)
    verdict = Verdict(
        decision=Decision.TUNED,
        reason="0.1 + 0.2 faster",
        speedup=1.1,
        interval=(1.05, 0.1 + 0.2),
        blocks=6,
        default_us=110.0,
        policy_us=100.0,
    )
    return Recommendation(
        id=id,
        revision=99,
        study="abc123",
        cluster=cluster,
        model=model,
        workload_digest="0" * 12,
        collectives=frozenset({Collective.ALL_REDUCE}),
        fingerprint=sample_cluster(nodes=nodes).fingerprint(),
        table=PolicyVerdict(policy=Policy(rules=(rule,)), verdict=verdict),
        variables=None,
        simulated=True,
        launcher="simulate",
        created="",
    )


def sample_ticket(
    secret: str, job: str, *, issued_s: float, recommendation: str, rollout: str = "", cluster: str = "pair"
) -> str:
    """Return the ticket of a job, signed with the secret of a store."""
    ticket = Ticket(
        job=shorten_name(job),
        cluster=cluster,
        model="toy",
        nodes=2,
        gpus_per_node=4,
        nccl_version="2.28.9",
        recommendation=recommendation,
        variant=Variant.ACTIVE,
        rollout=rollout,
        running=(0,) if rollout else (),
        issued_s=issued_s,
        expires_s=issued_s + TICKET_LIFE_S,
    )
    return sign_ticket(ticket, secret)


def sample_roll_out(*ids: str, share: float = 0.5, control: str = "a", seed: str = "s") -> RollOut:
    """Return a roll-out of revisions to equal shares, together a share of the jobs."""
    arms = tuple(RollOutArm(recommendation=id, share=share / len(ids)) for id in ids)
    return RollOut(
        id="f00d", cluster="pair", model="toy", arms=arms, control=control, gpus=8, seed=seed, loss_limit=0.01
    )


def settle(store: Store, rollout: RollOut, state: ArmState, reason: str) -> bool:
    """Decide the first arm of a stored roll-out as the guard does; return whether that changed anything."""
    before = store.revisions.rollout(rollout.id)
    arm = replace(before.arms[0], state=state, reason=reason)
    gain = PairedGain(estimate=1.03, interval=(1.01, 1.05), pairs=99) if state is ArmState.WON else None
    return store.revisions.settle_arms(rollout.id, [arm], Actor(who="guard"), gain=gain) != before
