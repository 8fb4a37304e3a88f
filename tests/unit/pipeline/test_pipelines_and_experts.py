"""Whole studies of a pipeline and of experts: their arms, and their verdicts."""

import random
from dataclasses import replace

import pytest
from quiet_tune import tune_quietly

from ncclt.core.budget import Budget
from ncclt.core.message import Collective, Message
from ncclt.core.recommendation import Decision
from ncclt.core.study import Phase
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.measure.testbed import Testbed
from ncclt.nccl.p2p_chunk import effective
from ncclt.pipeline.tune import TuneRequest
from ncclt.store import open_store
from ncclt.store.shipped import named_clusters, profiles_folder
from ncclt.testing.fakes import FakePolicyRunner

MIB = 1 << 20
CLUSTERS = [named_clusters(profiles_folder())[name].sized(nodes=2) for name in ("dgx-h100", "aws-p4d")]


def workload(*rows) -> Workload:
    calls = tuple(
        MessageCalls(
            message=Message(
                collective=collective, dtype="bfloat16", size_bytes=size, group_size=group, spans_nodes=True
            ),
            calls_per_step=count,
        )
        for collective, size, group, count in rows
    )
    return Workload(name="w", messages=calls, provenance=Provenance(source="test"))


PIPELINE = workload((Collective.SEND_RECV, 128 * MIB, 2, 16.0))
EXPERTS = workload((Collective.ALL_TO_ALL, 32 * MIB, 16, 64.0), (Collective.ALL_REDUCE, 64 * MIB, 16, 1.0))


@pytest.fixture(scope="module", params=CLUSTERS, ids=lambda cluster: cluster.name)
def cluster(request):
    return request.param


GAIN = 1.12
"""Of send_recv with chunks above 128 KiB; all_to_all and all_reduce gain nothing."""


def chunked_us(setting, message, number):
    """A time of the bytes, with noise of 1 % from launch to launch."""
    chunk = dict(setting.parameters).get("P2P_NET_CHUNKSIZE", 128 << 10)
    gains = message.collective is Collective.SEND_RECV and chunk > 128 << 10
    time_us = 20 + message.size_bytes / 20_000
    return time_us / (GAIN if gains else 1.0) * random.Random(number).lognormvariate(0.0, 0.01)


def study(cluster, asked, folder):
    with open_store(f"sqlite:///{folder}/ncclt.db") as store:
        return tune_quietly(
            TuneRequest(workload=asked, budget=Budget()),
            Testbed(runner=FakePolicyRunner(cluster, chunked_us), reason="test", covers=lambda _message: True).forcing(
                asked.collectives, None
            ),
            store,
        )


def require_distinct_arms(result, asked):
    """No two settings that were launched come to the same in NCCL, but for repeats of one."""
    messages = [calls.message for calls in asked.messages]
    cluster = result.study.cluster
    tried = {t.setting for t in result.trials if t.phase is Phase.SEARCH}
    alike = {
        (replace(setting, parameters=()), *sorted(effective(dict(setting.parameters), cluster, messages).items()))
        for setting in tried
    }
    assert len(alike) == len(tried) > 2


def test_a_pipeline_of_large_messages_is_tuned_by_its_chunk(cluster, tmp_path):
    result = study(cluster, PIPELINE, tmp_path)
    require_distinct_arms(result, PIPELINE)
    found = result.recommendation.table
    low, high = found.verdict.interval
    assert found.verdict.decision is Decision.TUNED
    assert dict(found.policy.parameters)["P2P_NET_CHUNKSIZE"] > 128 << 10
    assert low <= GAIN <= high


def test_experts_beside_a_short_all_reduce_keep_the_default_in_the_first_run(cluster, tmp_path):
    """Undecided would ask for trials that are never launched: no more of a short all_reduce is worth one."""
    result = study(cluster, EXPERTS, tmp_path)
    require_distinct_arms(result, EXPERTS)
    found = result.recommendation
    assert found.coverage.converged
    assert found.table.verdict.decision is Decision.KEEP_DEFAULT
