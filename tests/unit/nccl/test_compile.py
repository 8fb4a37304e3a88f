"""The compiler against NCCL's own reading of what it writes."""

import importlib.util
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.algo_proto_text import ALGORITHM_WORDS
from ncclt.core.algorithms import Algorithm, Protocol, is_legal
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule
from ncclt.core.setting import Setting
from ncclt.errors import SettingError
from ncclt.nccl.compile import compile_policy, variables_for_setting

_spec = importlib.util.spec_from_file_location("nccl_syntax", Path(__file__).with_name("nccl_syntax.py"))
nccl = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(nccl)

VERSIONS = [
    NcclVersion.parse(text)
    for text in ("2.18.6", "2.19.3", "2.22.3", "2.23.4", "2.24.3", "2.28.9", "2.30.7", "2.31.2", "2.32.3")
]
V2_22, V2_28, V2_31 = (NcclVersion.parse(text) for text in ("2.22.3", "2.28.9", "2.31.2"))
AR, AG, RS, BC = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.BROADCAST
TUNABLE = tuple(c for c in Collective if c.is_tunable)
FUNCTION = {AR: "AllReduce", AG: "AllGather", RS: "ReduceScatter", BC: "Broadcast", Collective.REDUCE: "Reduce"}
ALGORITHM = {
    Algorithm.TREE: "Tree",
    Algorithm.RING: "Ring",
    Algorithm.COLLNET_DIRECT: "CollNetDirect",
    Algorithm.COLLNET_CHAIN: "CollNetChain",
    Algorithm.NVLS: "NVLS",
    Algorithm.NVLS_TREE: "NVLSTree",
    Algorithm.PAT: "PAT",
}
PROTOCOL = {Protocol.LL: "LL", Protocol.LL128: "LL128", Protocol.SIMPLE: "Simple"}
workloads = st.sets(st.sampled_from(list(Collective)), min_size=1).map(frozenset)


def fits(rule, left):
    """Whether everything that is left to a collective is what its rule says."""
    return bool(left) and all(
        (rule.algorithm is None or algorithm == ALGORITHM[rule.algorithm])
        and (rule.protocol is None or protocol == PROTOCOL[rule.protocol])
        for algorithm, protocol in left
    )


def check_is_safe(policy, compiled, version, workload):
    """Assert everything that must hold of any compiled policy, as NCCL itself would read it."""
    variables = dict(compiled.variables)
    assert "^" not in "".join(variables.values())
    assert "ll128" not in variables.get("NCCL_PROTO", "").lower()
    assert not nccl.forces_ll128(variables, version)
    left, untouched = nccl.enabled(variables, version), nccl.enabled({}, version)
    assert all(left.values())
    ruled = {rule.collective: rule for rule in policy.rules}
    for collective, rule in ruled.items():
        mine = left[FUNCTION[collective]]
        if compiled.complete:
            assert fits(rule, mine)
        else:
            assert not variables or fits(rule, mine) or mine == untouched[FUNCTION[collective]]
    for collective in workload - set(ruled):
        if collective.is_tunable:
            mine = left[FUNCTION[collective]]
            assert mine == untouched[FUNCTION[collective]] or (version >= (2, 31) and compiled.lost)
            assert ("Ring", "Simple") in mine
    assert compiled.complete or compiled.lost


@st.composite
def policies(draw, version, *, uniform):
    """Rules that this NCCL implements, for some of the collectives."""
    channels = draw(st.sampled_from([None, None, 1, 8, 32]))
    rules = []
    for collective in draw(st.sets(st.sampled_from(TUNABLE))):
        pairs = [
            (a, p)
            for a, p in itertools.product([None, *Algorithm], [None, *Protocol])
            if is_legal(collective, a, p, version=version)
        ]
        algorithm, protocol = draw(st.sampled_from(pairs))
        bounds = {} if uniform else draw(st.sampled_from([{}, {"max_bytes": 65536}, {"min_bytes": 1}]))
        rules.append(Rule(collective=collective, algorithm=algorithm, protocol=protocol, channels=channels, **bounds))
    parameters = draw(st.sampled_from([(), (("BUFFSIZE", 8388608),), (("NTHREADS", 256),), (("IB_TC", 3),)]))
    return Policy(rules=tuple(rules), parameters=parameters)


@given(st.data(), st.sampled_from(VERSIONS), workloads, st.booleans())
def test_no_policy_leaves_a_collective_without_an_algorithm(data, version, workload, uniform):
    """Whatever the policy, version and workload: legal everywhere, LL128 never forced, rules exact or absent."""
    policy = data.draw(policies(version, uniform=uniform))

    compiled = compile_policy(policy, version=version, collectives=workload)

    check_is_safe(policy, compiled, version, workload)


def test_every_setting_is_safe_to_launch_for_every_workload(subtests):
    """All pairs x all sets of tunable collectives: a trial launches exactly its setting, or says that it cannot."""
    for version in [VERSIONS[i] for i in (1, 3, 4, 6, 7, 8)]:
        with subtests.test(version=version):
            launched = 0
            sets = [frozenset(s) for n in range(1, 6) for s in itertools.combinations(TUNABLE, n)]
            for algorithm, protocol, workload in itertools.product([None, *Algorithm], [None, *Protocol], sets):
                setting = Setting(algorithm=algorithm, protocol=protocol)
                here = [c for c in workload if is_legal(c, algorithm, protocol, version=version)]
                if not here:
                    with pytest.raises(SettingError):
                        variables_for_setting(setting, version=version, collectives=workload)
                    continue
                compiled = variables_for_setting(setting, version=version, collectives=workload)
                rules = tuple(Rule(collective=c, algorithm=algorithm, protocol=protocol) for c in here)
                check_is_safe(Policy(rules=rules if algorithm or protocol else ()), compiled, version, workload)
                launched += compiled.complete
            assert launched > 100


TREE_LL, RING_SIMPLE = (
    Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL),
    Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE),
)


@pytest.mark.parametrize(
    ("version", "setting", "collectives", "algo", "proto"),
    [
        (V2_22, RING_SIMPLE, (AR, AG), "ring", "Simple"),
        (V2_22, TREE_LL, (AR,), "tree", "LL"),
        # NCCL would fall back to Ring in silence for all_gather, which nobody chose.
        (V2_22, TREE_LL, (AR, AG), None, None),
        (V2_28, TREE_LL, (AR, AG), "allreduce:tree", "allreduce:LL"),
        (V2_31, TREE_LL, (AR, AG), "ring,tree;allreduce:tree", "LL,Simple;allreduce:LL"),
    ],
)
def test_a_pair_is_written_as_the_version_reads_it(version, setting, collectives, algo, proto):
    """A plain list for all before 2.24, a list for each collective then, behind a base list from 2.31."""
    compiled = variables_for_setting(setting, version=version, collectives=collectives)
    variables = {"NCCL_ALGO": algo, "NCCL_PROTO": proto} if algo else {}
    assert (dict(compiled.variables), compiled.complete) == (variables, bool(algo))
    if version == V2_28:
        assert all("torch.use_deterministic_algorithms" in sentence for sentence in compiled.lost)
    if version == V2_31:
        assert "all_gather can no longer use collnet_direct, nvls, pat, ll128" in compiled.lost[0]


def test_what_is_lost_takes_along_only_what_was_measured_with_it():
    """A plain list before 2.24 and a base list from 2.31 would reach the collective of the lost rule too."""
    ring = Rule(collective=AG, algorithm=Algorithm.RING, protocol=Protocol.SIMPLE)
    for lost in ((Algorithm.NVLS, Protocol.SIMPLE), (Algorithm.RING, Protocol.LL128)):
        policy = Policy(rules=(Rule(collective=AR, algorithm=lost[0], protocol=lost[1]), ring))
        assert dict(compile_policy(policy, version=V2_28, collectives=[AR, AG]).variables) == {
            "NCCL_ALGO": "allgather:ring",
            "NCCL_PROTO": "allgather:Simple",
        }
        for version in (V2_22, V2_31):
            assert compile_policy(policy, version=version, collectives=[AR, AG]).variables == ()


def test_channels_bind_no_other_collective_that_can_be_tuned_and_say_that_they_bind_send_recv():
    policy = Policy(rules=(Rule(collective=AR, algorithm=Algorithm.RING, channels=8),))
    compiled = compile_policy(policy, version=V2_28, collectives=[AR, AG])
    assert compiled.variables == ()
    assert "would also apply to all_gather" in compiled.lost[0]
    untunable = [AR, Collective.SEND_RECV, Collective.ALL_TO_ALL]
    compiled = variables_for_setting(Setting(channels=4), version=V2_28, collectives=untunable)
    assert compiled.lost == ("the channel cap also applies to all_to_all, send_recv",)


@pytest.mark.parametrize(("version", "unit"), [("2.16.2", "NCHANNELS"), ("2.17.1", "CTAS"), ("2.28.9", "CTAS")])
def test_channels_are_written_as_the_version_wants_them(version, unit):
    compiled = variables_for_setting(Setting(channels=8), version=NcclVersion.parse(version), collectives=[AR])

    assert dict(compiled.variables) == {f"NCCL_MAX_{unit}": "8"}


def test_too_many_channels_for_the_version_are_refused():
    rule = Rule(collective=AR, algorithm=Algorithm.RING, channels=64)

    with pytest.raises(SettingError, match="1 to 32 channels"):
        compile_policy(Policy(rules=(rule,)), version=V2_22, collectives=[AR])
    assert compile_policy(Policy(rules=(rule,)), version=V2_28, collectives=[AR]).complete


def test_a_workload_of_send_recv_takes_parameters_and_nothing_else():
    setting = Setting(parameters=(("BUFFSIZE", 8388608),))

    compiled = variables_for_setting(setting, version=V2_28, collectives=[Collective.SEND_RECV])

    assert compiled.variables == (("NCCL_BUFFSIZE", "8388608"),)
    with pytest.raises(SettingError):
        variables_for_setting(
            Setting(protocol=Protocol.LL), version=V2_28, collectives=[Collective.SEND_RECV, Collective.ALL_TO_ALL]
        )


def test_a_policy_by_size_is_not_approximated_and_takes_its_parameters_with_it():
    """Parameters were measured together with the rules; the table delivers both."""
    policy = Policy(
        rules=(
            Rule(collective=AR, max_bytes=65536, algorithm=Algorithm.TREE, protocol=Protocol.LL),
            Rule(collective=AR, min_bytes=65537, algorithm=Algorithm.RING, protocol=Protocol.SIMPLE),
        ),
        parameters=(("BUFFSIZE", 8388608),),
    )

    compiled = compile_policy(policy, version=V2_28, collectives=[AR])

    assert compiled.variables == ()
    assert not compiled.complete
    assert compiled.lost == (
        "all_reduce 0 B to 64 KiB: tree/ll: variables cannot depend on size or group",
        "all_reduce 64.00 KiB to any size: ring/simple: variables cannot depend on size or group",
        "NCCL_BUFFSIZE=8388608: it was measured together with rules that variables cannot express",
        "rules that variables cannot express need the plugin: use --format tuner-csv",
    )


@pytest.mark.parametrize(("name", "value"), [("P2P_SCHEDULE_GROUP_SIZE", 4), ("GDR_FLUSH_DISABLE", 1)])
def test_a_parameter_that_the_version_lacks_or_that_is_not_safe_is_left_out_and_named(name, value):
    compiled = compile_policy(Policy(parameters=((name, value),)), version=V2_22, collectives=[AR])

    assert compiled.variables == ()
    assert not compiled.complete
    assert compiled.lost[0].startswith(f"NCCL_{name}={value}: ")


def test_what_is_no_parameter_never_reaches_the_environment(subtests):
    for name in ["ALGO", "MAX_CTAS", "NCCL_BUFFSIZE", "LD_PRELOAD", "X\nLD_PRELOAD"]:
        with subtests.test(name=name), pytest.raises(SettingError):
            compile_policy(Policy(parameters=((name, 4),)), version=V2_28, collectives=[AR])


def test_a_rule_that_the_version_does_not_implement_is_refused():
    pat = Policy(rules=(Rule(collective=AG, algorithm=Algorithm.PAT, protocol=Protocol.SIMPLE),))
    tree = Policy(rules=(Rule(collective=AG, algorithm=Algorithm.TREE),))

    for policy in (pat, tree):
        with pytest.raises(SettingError, match="does not implement all_gather"):
            compile_policy(policy, version=V2_22, collectives=[AG])


REDUCED = ("Sum", "Prod", "Min", "Max", "Avg")
DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64", "fp8")


def serves(algorithm, function, dtype, operation):
    """What NCCL has kernels for (nccl.h, device/generate.py): written from its tables and not from ours."""
    if algorithm == "Ring":
        return True
    if algorithm == "Tree":
        return function == "AllReduce"
    if algorithm in ("NVLS", "NVLSTree"):
        if function == "AllGather":
            return True
        sums = dtype not in ("int8", "uint8", "fp8") and operation in ("Sum", "Min", "Max")
        return sums and (operation == "Sum" or dtype not in ("float32", "float64"))
    return algorithm == "PAT" and (function == "AllGather" or operation != "Avg")  # CollNet: as the network pleases


def test_no_call_of_a_job_fails_by_what_is_delivered(subtests):
    """Every algorithm, protocol and collective; every dtype and operation of every collective of NCCL."""
    for version in VERSIONS:
        with subtests.test(version=version):
            delivered = set()
            for collective, algorithm, protocol in itertools.product(TUNABLE, [None, *Algorithm], [None, *Protocol]):
                if not is_legal(collective, algorithm, protocol, version=version):
                    continue
                policy = Policy(rules=(Rule(collective=collective, algorithm=algorithm, protocol=protocol),))
                compiled = compile_policy(policy, version=version, collectives=[collective])
                left = nccl.enabled(dict(compiled.variables), version)
                for function, dtype, operation in itertools.product(FUNCTION.values(), DTYPES, REDUCED):
                    algorithms = {pair[0] for pair in left[function]}
                    assert any(serves(a, function, dtype, operation) for a in algorithms), (
                        compiled.variables,
                        function,
                        dtype,
                    )
                if compiled.variables:
                    delivered.add(algorithm)
                else:
                    assert compiled.lost or not (algorithm or protocol)
            assert delivered - {None} == {Algorithm.RING, Algorithm.TREE}


def test_an_algorithm_that_fails_some_calls_is_measured_and_not_delivered(subtests):
    """A trial forces exactly its setting; a job gets it by the table, where NCCL keeps its way out."""
    for version, algorithm in itertools.product(
        [V2_28, V2_31], [Algorithm.NVLS, Algorithm.NVLS_TREE, Algorithm.COLLNET_CHAIN]
    ):
        with subtests.test(algorithm=algorithm, version=version):
            setting = Setting(algorithm=algorithm, protocol=Protocol.SIMPLE)
            tried = variables_for_setting(setting, version=version, collectives=[AR])
            assert dict(tried.variables)["NCCL_ALGO"].endswith(f"allreduce:{ALGORITHM_WORDS[algorithm]}")
            assert tried.complete

            rule = Rule(collective=AR, algorithm=algorithm, protocol=Protocol.SIMPLE)
            delivered = compile_policy(Policy(rules=(rule,)), version=version, collectives=[AR])
            assert (delivered.variables, delivered.complete) == ((), False)
            assert "those calls would fail" in delivered.lost[0]
            assert "tuner-csv" in delivered.lost[1]
