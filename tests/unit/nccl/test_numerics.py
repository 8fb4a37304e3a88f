"""Agreement of policies with the bits of the NCCL default."""

from dataclasses import replace

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule
from ncclt.deliver.render.delivery import compare_numerics
from ncclt.nccl.compile import compile_policy
from ncclt.nccl.numerics import SameBits, compare_bits
from ncclt.testing.samples import sample_recommendation

AG, AR, RS, REDUCE = Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE
RING = {"algorithm": Algorithm.RING}


def bits(*rules, parameters=(), version="2.28.9", by_variables=False):
    policy = Policy(rules=rules, parameters=parameters)
    found = compare_bits(policy, version=NcclVersion.parse(version), by_variables=by_variables)
    assert found.why
    assert f": {found.same_bits}: " in found.sentence
    return found.same_bits


def test_the_default_and_what_only_moves_bytes_keep_the_bits():
    assert bits() is SameBits.YES
    assert bits(Rule(collective=AG, **RING, protocol=Protocol.LL, channels=4)) is SameBits.YES
    assert bits(parameters=(("IB_QPS_PER_CONNECTION", 4), ("P2P_NET_CHUNKSIZE", 262144))) is SameBits.YES


def test_what_acts_on_the_whole_process_is_unknown_whatever_the_profile_has(subtests):
    """A job also reduces a loss or a gradient norm, which a profile of its all_gathers lacks."""
    cap, ring = Rule(collective=AG, channels=4), Rule(collective=AG, **RING)
    for rules, more, found in [
        ((), {"parameters": (("BUFFSIZE", 8388608),)}, SameBits.UNKNOWN),
        ((cap,), {"by_variables": True}, SameBits.UNKNOWN),
        ((cap,), {}, SameBits.YES),
        ((ring,), {"by_variables": True, "version": "2.23.4"}, SameBits.UNKNOWN),
        ((ring,), {"version": "2.23.4"}, SameBits.YES),
        ((ring,), {"by_variables": True, "version": "2.24.3"}, SameBits.UNKNOWN),
        ((Rule(collective=AG, protocol=Protocol.LL),), {"by_variables": True, "version": "2.24.3"}, SameBits.YES),
        ((ring,), {"by_variables": True, "version": "2.31.2"}, SameBits.UNKNOWN),
        ((Rule(collective=AG, protocol=Protocol.LL),), {"by_variables": True, "version": "2.23.4"}, SameBits.UNKNOWN),
    ]:
        with subtests.test(rules=rules, **more):
            assert bits(*rules, **more) is found


def test_a_reduce_forced_to_its_only_algorithm_keeps_the_bits():
    assert bits(Rule(collective=REDUCE, **RING)) is SameBits.YES
    assert bits(Rule(collective=REDUCE, **RING, channels=4)) is SameBits.UNKNOWN


@pytest.mark.parametrize("collective", [AR, RS])
def test_a_forced_algorithm_of_a_reduction_changes_them(collective):
    assert bits(Rule(collective=AG, **RING), Rule(collective=collective, **RING)) is SameBits.NO


def test_the_split_of_an_all_reduce_changes_them_and_of_other_reductions_perhaps():
    for change in ({"protocol": Protocol.SIMPLE}, {"channels": 8}):
        assert bits(Rule(collective=AR, **change)) is SameBits.NO
        assert bits(Rule(collective=RS, **change)) is SameBits.UNKNOWN
        assert bits(Rule(collective=RS, **change), Rule(collective=AR, **RING)) is SameBits.NO


def test_a_rule_for_a_reduction_counts_whatever_the_profile_has():
    """A job also reduces a loss, which a profile of its all_gathers lacks, and the table has the rule for it."""
    found = sample_recommendation("r")
    policy = Policy(rules=(Rule(collective=AR, **RING),))
    only_gathers = replace(found, collectives=frozenset((AG,)))
    assert compare_numerics(only_gathers, policy, by_variables=False).same_bits is SameBits.NO


def test_parameters_that_change_chunks_or_channels_are_unknown():
    for name in ("BUFFSIZE", "NTHREADS", "MIN_CTAS"):
        assert bits(parameters=((name, 64),)) is SameBits.UNKNOWN


def test_a_variable_that_removes_the_guard_of_pytorch_is_named(subtests):
    """torch.use_deterministic_algorithms sets NCCL_ALGO=^NVLS only where NCCL_ALGO is unset."""
    ring = Rule(collective=AG, **RING)
    both = (Rule(collective=AR, **RING), Rule(collective=RS, **RING))
    for rules, version, left in [
        ((ring,), "2.28.9", "all_reduce, reduce_scatter"),
        (both[:1], "2.28.9", "reduce_scatter"),
        (both, "2.28.9", ""),
        ((Rule(collective=AG, protocol=Protocol.LL),), "2.28.9", ""),
        ((ring,), "2.23.4", ""),
        ((ring,), "2.31.2", ""),
    ]:
        with subtests.test(rules=rules, version=version):
            uses = {rule.collective for rule in rules}
            compiled = compile_policy(Policy(rules=rules), version=NcclVersion.parse(version), collectives=uses)
            said = [sentence for sentence in compiled.lost if "torch.use_deterministic_algorithms" in sentence]
            assert [sentence.partition(", and")[0] for sentence in said] == [f"NCCL_ALGO leaves NVLS to {left}"] * bool(
                left
            )
