"""Options of one process group, read as PyTorch and Megatron-LM do; nothing is claimed of a group not measured."""

import json
from dataclasses import replace

import format_readers as readers
import pytest
from rendered import CHANNELS, KEPT, ONE_GROUP, PROVEN

from ncclt.client.answer import MEGATRON_GROUPS
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision, PolicyVerdict
from ncclt.deliver.render.formats import render
from ncclt.errors import NoRecommendationError, UsageError

FORMS = (("pg-options", ""), ("megatron-yaml", "dp_cp"))


def read(found, format="pg-options", group=""):
    text = render(found, format=format, group=group)
    return readers.read_pg_options(text) if format == "pg-options" else readers.read_megatron(text, group)


def with_variables(*rules, parameters=()):
    policy = Policy(rules=rules, parameters=parameters)
    return replace(ONE_GROUP, variables=PolicyVerdict(policy=policy, verdict=PROVEN))


def test_both_readers_get_the_channels_that_were_validated(subtests):
    rules = CHANNELS.rules
    for format, group in FORMS:
        for found, wanted in (
            (with_variables(*rules), {"max_ctas": 8}),
            (with_variables(parameters=(("MIN_CTAS", 32),)), {"min_ctas": 32}),
            (with_variables(*rules, parameters=(("MIN_CTAS", 4),)), {"min_ctas": 4, "max_ctas": 8}),
            (KEPT, {}),
        ):
            with subtests.test(format=format, wanted=wanted):
                assert read(found, format, group) == wanted


def test_options_name_their_group_and_the_variables_that_override_them(subtests):
    for format, group in FORMS:
        for spans, place in ((False, "inside a node"), (True, "across nodes")):
            with subtests.test(format=format, spans=spans):
                found = replace(ONE_GROUP, groups=frozenset({(4, spans)}))
                text = render(found, format=format, group=group)

                assert f"# For process groups of 4 ranks {place} alone\n" in text
                assert "# NCCL_MIN_CTAS and NCCL_MAX_CTAS in the environment take precedence" in text
                assert "tuned, 1.08x" in text


def test_megatron_gets_options_for_the_named_group_alone():
    text = render(ONE_GROUP, format="megatron-yaml", group="tp")

    assert readers.read_megatron(text, "tp") == {"max_ctas": 8}
    assert all(readers.read_megatron(text, group) is None for group in MEGATRON_GROUPS if group != "tp")


def test_groups_measured_together_get_no_options_of_their_own(subtests):
    both = frozenset({(4, False), (8, True)})
    for groups, why in ((both, "groups of 4 ranks inside a node and of 8 ranks across nodes"), ((), "are unknown")):
        for format, group in FORMS:
            with subtests.test(format=format, why=why):
                with pytest.raises(NoRecommendationError, match=why) as caught:
                    render(replace(ONE_GROUP, groups=frozenset(groups)), format=format, group=group)
                assert "`ncclt profile import --group N`" in caught.value.hint
                assert "--through options" in caught.value.hint


def test_what_options_cannot_carry_is_named_and_nothing_is_written(subtests):
    ring = Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=8)
    table = PolicyVerdict(policy=Policy(rules=(ring,)), verdict=PROVEN)
    old = replace(ONE_GROUP.fingerprint, nccl_version="2.16.2")
    for found, lost in (
        (
            with_variables(ring, replace(ring, collective=Collective.ALL_GATHER)),
            "NCCL_ALGO=allreduce:ring;allgather:ring, NCCL_PROTO=",
        ),
        (with_variables(*CHANNELS.rules, parameters=(("BUFFSIZE", 8388608),)), "NCCL_BUFFSIZE=8388608"),
        (replace(ONE_GROUP, table=table, variables=None), "all_reduce ring/simple"),
        (replace(ONE_GROUP, fingerprint=old), "NCCL_MAX_NCHANNELS=8"),
    ):
        for format, group in FORMS:
            with subtests.test(format=format, lost=lost):
                with pytest.raises(NoRecommendationError, match="cannot carry what was validated") as caught:
                    render(found, format=format, group=group)
                assert lost in caught.value.message
                assert "--through options" in caught.value.hint


def test_a_better_table_is_named_as_lost_beside_the_options():
    tree = Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.TREE, protocol=Protocol.LL, channels=4)
    table = PolicyVerdict(policy=Policy(rules=(tree,)), verdict=replace(PROVEN, speedup=1.2))
    text = render(replace(ONE_GROUP, table=table), format="pg-options")

    assert readers.read_pg_options(text) == {"max_ctas": 8}
    assert "# warning: the tuned policy, 1.20x, needs the plugin: use --format tuner-csv" in text


def test_undecided_gives_no_options():
    verdict = replace(PROVEN, decision=Decision.UNDECIDED, reason="too noisy")
    with pytest.raises(NoRecommendationError, match="undecided: too noisy"):
        render(replace(ONE_GROUP, variables=PolicyVerdict(policy=CHANNELS, verdict=verdict)), format="pg-options")


@pytest.mark.parametrize(
    ("format", "group", "said"),
    [
        ("megatron-yaml", "", "no --group for Megatron"),
        ("megatron-yaml", "dp-cp", "no options for a group 'dp-cp'"),
        ("megatron-yaml", "tp: {}\nevil", "no options for a group"),
        ("pg-options", "tp", "--group needs --format megatron-yaml"),
    ],
)
def test_a_group_that_no_reader_looks_up_is_refused(format, group, said):
    with pytest.raises(UsageError, match=said):
        render(ONE_GROUP, format=format, group=group)


def test_json_names_the_measured_groups():
    assert json.loads(render(ONE_GROUP, format="json"))["groups"] == [[4, False]]
