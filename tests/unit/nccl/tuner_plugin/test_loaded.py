"""The compiled plugin, asked by ctypes as NCCL asks it."""

import math
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.deliver.render.formats import render
from ncclt.errors import InputError
from ncclt.nccl.tuner_plugin.build import compiler
from ncclt.nccl.tuner_plugin.loaded import API_VERSIONS, LoadedPlugin
from ncclt.nccl.tuner_table import ALGORITHMS, FUNCTIONS, PROTOCOLS
from ncclt.testing.samples import sample_recommendation

ALL_REDUCE = FUNCTIONS.index("allreduce")
WITH_TABLE = API_VERSIONS[1:]
CHEAPEST = pytest.approx(1e-6)


def entry(algorithm, protocol):
    return ALGORITHMS.index(algorithm) * 3 + PROTOCOLS.index(protocol)


def chosen(answer):
    """Return (algorithm, protocol) of the entry that was made cheap, None where there is none."""
    cheap = [at for at, cost in enumerate(answer.costs) if 0 <= cost < 1]
    assert len(cheap) <= 1
    return (ALGORITHMS[cheap[0] // 3], PROTOCOLS[cheap[0] % 3]) if cheap else None


def select_until_2_30(costs):
    """NCCL's rule up to 2.30: the first strict minimum among entries that are not negative."""
    return min((at for at, cost in enumerate(costs) if cost >= 0), key=lambda at: (costs[at], at), default=None)


def select_since_2_31(costs, offered):
    """NCCL's rule since 2.31: the minimum over what was valid, whatever its sign; of equal ones the last."""
    return min((at for at, cost in enumerate(offered) if cost >= 0), key=lambda at: (costs[at], -at), default=None)


COSTS = st.one_of(st.just(-1.0), st.just(0.0), st.floats(min_value=0.125, max_value=2**20, width=32))


@pytest.mark.parametrize("algorithms", [6, 7])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_intended_entry_wins_and_nothing_else_is_written(opened, algorithms, data):
    algorithm = data.draw(st.sampled_from(ALGORITHMS))
    protocol = data.draw(st.sampled_from(PROTOCOLS))
    costs = data.draw(st.lists(COSTS, min_size=algorithms * 3, max_size=algorithms * 3))
    at = entry(algorithm, protocol)
    with opened(f"allreduce,0,100,{algorithm},{protocol},4,-1,-1", api=data.draw(st.sampled_from(WITH_TABLE))) as comm:
        answer = comm.ask(ALL_REDUCE, 64, costs=costs)

    offered = at < len(costs) and costs[at] >= 0
    expected = [CHEAPEST if offered and i == at else cost for i, cost in enumerate(costs)]
    assert answer.costs == expected
    if offered and 0.0 not in costs:
        assert select_until_2_30(answer.costs) == select_since_2_31(answer.costs, costs) == at
    if not offered:
        assert select_until_2_30(answer.costs) == select_until_2_30(costs)
        assert select_since_2_31(answer.costs, costs) == select_since_2_31(costs, costs)
    assert answer.channels == (4 if offered and "collnet" not in algorithm else 0)


def test_a_wider_table_of_a_later_nccl_is_indexed_by_its_own_width(opened):
    """Traps: the table is contiguous, numProto is the stride; only its rank knows whether buffers are registered."""
    with opened("allreduce,0,100,ring,ll128,-1,-1,-1") as comm:
        for registered in (0, 1):
            answer = comm.ask(ALL_REDUCE, 64, costs=[5.0] * 40, protocols=5, registered=registered)
            assert [at for at, cost in enumerate(answer.costs) if cost < 1] == [1 * 5 + 1]


def test_a_call_without_a_row_keeps_costs_and_channels(subtests, opened):
    """Trap: NVIDIA's example sets one channel here."""
    for api in WITH_TABLE:
        with subtests.test(api=api), opened("allreduce,100,200,ring,simple,8,-1,-1", api=api) as comm:
            for size in (99, 201):
                answer = comm.ask(ALL_REDUCE, size)
                assert (answer.costs, answer.channels) == ([1.0] * 21, 0)
            assert comm.ask(FUNCTIONS.index("reduce"), 150).channels == 0


def test_what_nccl_disabled_stays_disabled_and_no_later_row_is_tried(opened):
    """Trap: from 2.31 on, a written negative value wins."""
    costs = [1.0] * 21
    costs[entry("nvls", "simple")] = -1.0
    with opened("allreduce,0,100,nvls,simple,8,-1,-1", "allreduce,0,100,ring,ll,8,-1,-1") as comm:
        answer = comm.ask(ALL_REDUCE, 64, costs=costs)

    assert (answer.costs, answer.channels) == (costs, 0)


@pytest.mark.parametrize("strange", [math.nan, -math.inf, -0.5])
def test_strange_entries_are_left_alone(opened, strange):
    with opened("allreduce,0,100,tree,ll,8,-1,-1") as comm:
        answer = comm.ask(ALL_REDUCE, 64, costs=[strange, *[1.0] * 20])

    assert answer.costs == pytest.approx([strange, *[1.0] * 20], nan_ok=True)
    assert answer.channels == 0


def test_channels_are_limited_to_what_nccl_has(subtests, opened):
    for api, most in [(3, 32), (4, 64), (5, 64), (6, 64), (7, 64)]:
        with subtests.test(api=api, most=most), opened("allreduce,0,100,ring,ll,4000,-1,-1", api=api) as comm:
            assert comm.ask(ALL_REDUCE, 64).channels == most


def test_the_api_without_a_cost_table_is_given_only_what_is_safe(subtests, opened):
    for row, supports, expected in [
        ("allreduce,0,9,tree,ll,4,-1,-1", (0, 0), ("tree", "ll", 4)),
        ("allreduce,0,9,ring,simple,64,-1,-1", (0, 0), ("ring", "simple", 32)),
        ("allreduce,0,9,ring,ll128,4,-1,-1", (1, 1), None),
        ("allreduce,0,9,nvls,simple,4,-1,-1", (0, 1), None),
        ("allreduce,0,9,nvls,simple,4,-1,-1", (1, 1), ("nvls", "simple", 4)),
        ("allreduce,0,9,nvls_tree,simple,4,-1,-1", (0, 0), None),
        ("allreduce,0,9,nvls_tree,simple,4,-1,-1", (0, 1), ("nvls_tree", "simple", 4)),
        ("allreduce,0,9,collnet_chain,simple,4,-1,-1", (0, 1), None),
        ("allreduce,0,9,collnet_chain,simple,4,-1,-1", (1, 0), ("collnet_chain", "simple", 0)),
        ("allreduce,0,9,nvls,ll,4,-1,-1", (1, 1), None),
        ("allreduce,0,9,pat,simple,4,-1,-1", (1, 1), None),
        ("allgather,0,9,tree,ll,4,-1,-1", (1, 1), None),
    ]:
        with subtests.test(row=row, supports=supports, expected=expected):
            with opened(row, api=2) as comm:
                answer = comm.ask(FUNCTIONS.index(row.partition(",")[0]), 8, supports=supports)

            assert (answer.algorithm is None) == (answer.protocol is None) == (expected is None)
            if expected is not None:
                assert (ALGORITHMS[answer.algorithm], PROTOCOLS[answer.protocol], answer.channels) == expected
            else:
                assert answer.channels == 0


SIZES = st.integers(min_value=1, max_value=2**40)


@st.composite
def policies(draw):
    rules = []
    for group in draw(st.sets(st.sampled_from([0, 2, 8]), min_size=1)):
        ends = sorted(draw(st.sets(SIZES, min_size=1, max_size=5)))
        for first, last in zip(ends, [*[end - 1 for end in ends[1:]], None], strict=True):
            if draw(st.booleans()):
                rules.append(
                    Rule(
                        collective=Collective.ALL_REDUCE,
                        min_bytes=first,
                        max_bytes=last,
                        group_size=group,
                        algorithm=draw(st.sampled_from([Algorithm.TREE, Algorithm.RING])),
                        protocol=draw(st.sampled_from(list(Protocol))),
                        channels=draw(st.none() | st.integers(min_value=1, max_value=32)),
                    )
                )
    return Policy(rules=tuple(rules))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(policy=policies(), sizes=st.lists(SIZES, min_size=1, max_size=8), group=st.sampled_from([2, 4, 8]))
def test_a_rendered_policy_chooses_in_the_plugin_what_it_says(plugin, tmp_path, policy, sizes, group):
    sample = sample_recommendation("r-1")
    fingerprint = replace(sample.fingerprint, nodes=2, gpus_per_node=4, nccl_version="2.28.9")
    recommendation = replace(sample, fingerprint=fingerprint, table=replace(sample.table, policy=policy))
    table = tmp_path / "table.csv"
    table.write_text(render(recommendation, format="tuner-csv"))
    ends = [end for rule in policy.rules for end in (rule.min_bytes, rule.max_bytes) if end]
    edges = [size for end in ends for size in (end - 1, end, end + 1) if size]
    with plugin.communicator(ranks=group, nodes=2, environ={"NCCLT_POLICY": str(table)}) as comm:
        for size in [*sizes, *edges]:
            message = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size, group_size=group)
            wanted = policy.setting_for(message)
            # A rule for any group lies in the table as one for the whole job: how smaller ones lie is not known.
            if (
                group != 8
                and wanted.algorithm
                and not any(r.group_size == group and r.matches(message) for r in policy.rules)
            ):
                wanted = Policy().setting_for(message)
            answer = comm.ask(ALL_REDUCE, size)
            assert chosen(answer) == ((wanted.algorithm, wanted.protocol) if wanted.algorithm else None)
            assert answer.channels == (wanted.channels or 0)


def test_what_is_no_plugin_is_refused_with_a_hint(tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(b"\x7fELF nothing")

    with pytest.raises(InputError) as caught:
        LoadedPlugin(path)

    assert "ncclt admin plugin build" in caught.value.hint


def test_threads_that_open_at_once_leave_the_environment_as_it_was(plugin):
    """One thread's value must not be what another puts back."""
    inside = threading.Barrier(4)

    def open_often(name):
        inside.wait()
        environ = {"NCCLT_POLICY": name, "NCCLT_POLICY_SHM": None, "NCCLT_AGREEMENT": "hook"}
        for _ in range(200):
            with plugin.communicator(ranks=8, nodes=1, environ=environ) as comm:
                assert name in comm.log[0]

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("NCCLT_POLICY", "mine")
        patched.delenv("NCCLT_POLICY_SHM", raising=False)
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(open_often, f"/absent-{number}") for number in range(4)]:
                done.result()
        assert os.environ["NCCLT_POLICY"] == "mine"
        assert "NCCLT_POLICY_SHM" not in os.environ


@pytest.mark.usefixtures("library")  # skips where there is no compiler
def test_a_plugin_without_finalize_is_refused(tmp_path):
    source = tmp_path / "old.c"
    source.write_text(
        "static int f(void) { return 0; }\n"
        "void *ncclTunerPlugin_v2[4] = {0, f, f, f}, *ncclTunerPlugin_v3[4] = {0, f, f, f};\n"
        "void *ncclTunerPlugin_v4[4] = {0, f, f, f}, *ncclTunerPlugin_v5[4] = {0, f, f, f};\n"
        "void *ncclTunerPlugin_v6[5] = {0, f, f, 0, f}, *ncclTunerPlugin_v7[5] = {0, f, f, f, 0};\n"
    )
    subprocess.run([compiler(), "-shared", "-fPIC", "-o", tmp_path / "old.so", source], check=True)
    with pytest.raises(InputError, match="API v6 has no finalize"):
        LoadedPlugin(tmp_path / "old.so")
