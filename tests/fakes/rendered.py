"""Recommendations in every state that a text can have, and the names of a hostile user."""

from dataclasses import replace

from hypothesis import strategies as st

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import Fingerprint
from ncclt.core.message import Collective
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation, Verdict

AR, AG = Collective.ALL_REDUCE, Collective.ALL_GATHER
PROVEN = Verdict(
    decision=Decision.TUNED, reason="faster", speedup=1.083, interval=(1.06, 1.1), blocks=6, default_us=9, policy_us=8
)
UNPROVEN = replace(
    PROVEN,
    decision=Decision.KEEP_DEFAULT,
    reason="the gain of 0.4 % is below 2 %",
    speedup=1.004,
    interval=(0.99, 1.02),
)
PLAIN = Policy(
    rules=tuple(Rule(collective=c, algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=8) for c in (AR, AG)),
    parameters=(("BUFFSIZE", 8388608),),
)
BY_SIZE = Policy(
    rules=(
        Rule(collective=AR, max_bytes=65536, algorithm=Algorithm.TREE, protocol=Protocol.LL, channels=4),
        Rule(collective=AR, min_bytes=65537, algorithm=Algorithm.RING, protocol=Protocol.LL128),
        Rule(collective=AR, group_size=2, algorithm=Algorithm.RING, protocol=Protocol.LL, channels=2),
        Rule(collective=AG, algorithm=Algorithm.RING),
    ),
    parameters=(("BUFFSIZE", 8388608),),
)
TUNED = Recommendation(
    id="r-1f3c",
    revision=1,
    study="s",
    cluster="leonardo",
    model="bert",
    workload_digest="d",
    collectives=frozenset({AR, AG, Collective.SEND_RECV}),
    fingerprint=Fingerprint(
        gpu="A100", link_class="nvlink", fabric="infiniband", nodes=2, gpus_per_node=4, nccl_version="2.28.9"
    ),
    table=PolicyVerdict(policy=BY_SIZE, verdict=PROVEN),
    variables=PolicyVerdict(policy=PLAIN, verdict=PROVEN),
    simulated=True,
    launcher="simulate",
    created="2026-01-01T00:00:00Z",
)
KEPT = replace(
    TUNED,
    simulated=False,
    launcher="slurm",
    groups=frozenset({(4, False)}),
    table=PolicyVerdict(policy=BY_SIZE, verdict=UNPROVEN),
    variables=PolicyVerdict(policy=PLAIN, verdict=UNPROVEN),
)
WITH_ROWS = replace(
    TUNED, table=PolicyVerdict(policy=Policy(rules=BY_SIZE.rules[1:], parameters=BY_SIZE.parameters), verdict=PROVEN)
)
CHANNELS = Policy(rules=(Rule(collective=AR, channels=8), Rule(collective=AG, channels=8)))
ONE_GROUP = replace(
    TUNED,
    simulated=False,
    launcher="slurm",
    collectives=frozenset({AR, AG}),
    table=PolicyVerdict(policy=CHANNELS, verdict=PROVEN),
    variables=PolicyVerdict(policy=CHANNELS, verdict=PROVEN),
    groups=frozenset({(4, False)}),
)
HOSTILE = "x\nexport NCCL_EVIL=1\n'\"`touch pwned`$(touch pwned);touch pwned # * \\\r"
hostile = st.text(st.sampled_from(list(HOSTILE + "aé漢{}[]?~!|&<>\t\0")), max_size=40)

PLAIN_VARIABLES = {
    "NCCL_ALGO": "allreduce:ring;allgather:ring",
    "NCCL_PROTO": "allreduce:Simple;allgather:Simple",
    "NCCL_MAX_CTAS": "8",
    "NCCL_BUFFSIZE": "8388608",
}
