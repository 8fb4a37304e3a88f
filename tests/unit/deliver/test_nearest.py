"""The nearest recommendation: only on request, marked, and nothing that the job's machines or NCCL may not have."""

import itertools
import json
from dataclasses import replace

import pytest

from ncclt.client.answer import MARKS, AnswerError, checked_document, marks_of, written
from ncclt.core.algorithms import Algorithm, Protocol, is_legal
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision, PolicyVerdict, Request, TimesOrigin
from ncclt.core.rollout import Reason, RollOut
from ncclt.deliver.nearest import nearest_for
from ncclt.deliver.offer import offer_of
from ncclt.deliver.render.formats import FORMATS, render
from ncclt.deliver.variant import fitting_or_nearest, given
from ncclt.errors import NoRecommendationError, StaleRecommendationError
from ncclt.testing.samples import sample_recommendation

ALL = Collective.ALL_REDUCE


def published(id="a", *, rules=None, parameters=(), **fingerprint):
    """A measured revision for 2 x 4 GPUs and NCCL 2.28.9, but for what is named."""
    made = sample_recommendation(id)
    policy = made.table.policy if rules is None else Policy(rules=rules, parameters=parameters)
    return replace(
        made, simulated=False, launcher="slurm", table=replace(made.table, policy=policy),
        fingerprint=replace(made.fingerprint, **fingerprint),
    )  # fmt: skip


def asked(**more):
    shape = {"nodes": 4, "gpus_per_node": 4, "nccl_version": "2.28.9", **more}
    return Request(cluster="pair", model="toy", **{"nearest": True, **shape})


def nearest(found, **more):
    return nearest_for(found, asked(**more), rolled_out=())


def test_only_on_request_and_only_where_nothing_fits():
    exact, other = published("exact", nodes=4), published("other")
    unasked = Request(cluster="pair", model="toy", nodes=4, gpus_per_node=4, nccl_version="2.28.9")
    assert fitting_or_nearest([other, exact], (), asked()).id == "exact"
    assert not fitting_or_nearest([other, exact], (), asked()).nearest
    with pytest.raises(NoRecommendationError):
        fitting_or_nearest([other], (), unasked)
    found = fitting_or_nearest([other], (), asked())
    assert (found.id, found.nearest) == ("other", ("nodes: measured with 2, asked for 4",))
    assert (found.fingerprint.nodes, found.fingerprint.gpus_per_node) == (4, 4)


def test_a_stale_one_that_fits_is_not_replaced_by_another():
    with pytest.raises(StaleRecommendationError):
        fitting_or_nearest([replace(published(nodes=4), stale="old"), published()], (), asked())
    assert nearest([replace(published(), stale="old")]) is None
    assert nearest([replace(published("new"), stale="old"), published("older")]) is None, "measured even earlier"


def test_nodes_count_by_their_ratio_other_fields_by_one_and_the_newest_wins():
    def id_of(*found, **more):
        return nearest(found, **more).id

    assert id_of(published("2", nodes=2), published("16", nodes=16), nodes=6) == "16"
    assert id_of(published("2", nodes=2), published("8", nodes=8)) == "2", "as far as 8, and newer"
    assert id_of(published("8", nodes=8, nccl_version="2.27.3"), published("32", nodes=32)) == "8"
    assert id_of(published("nccl", nodes=4, nccl_version="2.27.3"), published("16", nodes=16)) == "nccl"
    assert id_of(published("there", nodes=8, topology_hash="x"), published("b", nodes=8), topology_hash="x") == "there"


def test_measured_times_come_first_and_others_take_their_own_word():
    simulated = replace(published("simulated"), simulated=True)
    recorded = replace(published("recorded"), launcher="replay")
    far = published("far", nodes=64)
    assert nearest([simulated, recorded]) is None
    assert nearest([simulated, recorded], allowed=frozenset({TimesOrigin.SIMULATED})).id == "simulated"
    assert nearest([simulated, recorded, far], allowed=frozenset(TimesOrigin)).id == "far"


@pytest.mark.parametrize(("measured", "wanted"), [(1, 2), (1, 64), (2, 1), (64, 1)])
def test_inside_one_node_everything_is_different(measured, wanted):
    nvls = Rule(collective=ALL, algorithm=Algorithm.NVLS, protocol=Protocol.SIMPLE)
    plain = Rule(collective=ALL, algorithm=Algorithm.RING, protocol=Protocol.LL)
    for rule in (nvls, plain):
        assert nearest([published(nodes=measured, rules=(rule,))], nodes=wanted) is None


CHOICES = [
    (algorithm, protocol)
    for algorithm, protocol in itertools.product(Algorithm, Protocol)
    if is_legal(ALL, algorithm, protocol, version=NcclVersion(2, 28))
]


@pytest.mark.parametrize(("algorithm", "protocol"), CHOICES)
@pytest.mark.parametrize("job", [{"gpus_per_node": 8}, {"topology_hash": "other"}, {"nodes": 2, "gpus_per_node": 1}])
def test_what_needs_certain_machines_is_for_no_other_ones(algorithm, protocol, job):
    """NVLS, NVLSTree, CollNet, PAT and LL128 depend on links, switches and ranks per node."""
    rule = Rule(collective=ALL, algorithm=algorithm, protocol=protocol)
    found = nearest([published(rules=(rule,))], **job)
    everywhere = algorithm in (Algorithm.RING, Algorithm.TREE) and protocol is not Protocol.LL128
    assert (found is not None) == everywhere
    assert found is None or found.table.policy.rules == (rule,)


def test_two_gpus_get_no_ll128():
    rule = Rule(collective=ALL, algorithm=Algorithm.RING, protocol=Protocol.LL128)
    four = published(nodes=4, gpus_per_node=1, rules=(rule,))
    assert nearest([four], nodes=8, gpus_per_node=1).table.policy.rules == (rule,)
    assert nearest([four], nodes=2, gpus_per_node=1) is None


def test_an_nccl_that_lacks_it_gets_another_or_nothing():
    tree = Rule(collective=ALL, algorithm=Algorithm.NVLS_TREE, protocol=Protocol.SIMPLE)
    ring = Rule(collective=ALL, algorithm=Algorithm.RING, protocol=Protocol.SIMPLE)
    near, far = published("near", rules=(tree,)), published("far", nodes=64, rules=(ring,))
    assert nearest([near, far], nodes=2, nccl_version="2.17.1").id == "far"
    assert nearest([near], nodes=2, nccl_version="2.17.1") is None
    assert nearest([near], nodes=2, nccl_version="2.28.3").id == "near"


def test_the_whole_job_stays_the_whole_job_and_groups_that_do_not_exist_go():
    def rule(group_size, spans_nodes=None):
        return Rule(
            collective=ALL, group_size=group_size, spans_nodes=spans_nodes, algorithm=Algorithm.RING,
            protocol=Protocol.SIMPLE,
        )  # fmt: skip

    whole, inside, across = rule(16), rule(4, False), rule(8, True)
    found = published(nodes=4, rules=(whole, across, inside))
    bigger = nearest([found], nodes=8)
    assert [one.group_size for one in bigger.table.policy.rules] == [4, 8, 32]
    smaller = nearest([found], nodes=2)
    assert [one.group_size for one in smaller.table.policy.rules] == [4, 8], "the group of 8 is the whole job now"
    assert smaller.table.policy.rules[-1].spans_nodes is None
    other_nodes = nearest([found], gpus_per_node=8)
    assert [one.group_size for one in other_nodes.table.policy.rules] == [32], "other groups lie otherwise there"
    with_parameter = published(nodes=4, rules=(whole, across, inside), parameters=(("BUFFSIZE", 8388608),))
    assert nearest([with_parameter], nodes=2) is None, "what was measured together is delivered together"
    assert nearest([with_parameter], nodes=8).table.policy.parameters == (("BUFFSIZE", 8388608),)


def test_nothing_is_given_that_says_nothing():
    undecided = published("undecided")
    verdict = replace(undecided.table.verdict, decision=Decision.UNDECIDED)
    undecided = replace(undecided, table=PolicyVerdict(policy=undecided.table.policy, verdict=verdict))
    far = published("far", nodes=64)
    assert nearest([undecided]) is None
    assert nearest([undecided, far]).id == "far"
    kept = replace(far, table=replace(far.table, verdict=replace(verdict, decision=Decision.KEEP_DEFAULT)))
    assert nearest([kept]).id == "far"


def test_a_job_that_is_not_known_and_a_roll_out_have_no_part_in_it():
    assert nearest([published()], nodes=None) is None
    rollout = RollOut(
        id="f00d", cluster="pair", model="toy", recommendation="b", control="", percent=50, seed="s", loss_limit=0.01
    )
    with pytest.raises(NoRecommendationError):
        fitting_or_nearest([published("b")], [(rollout, published("b"))], asked(job="job 1"))
    found = fitting_or_nearest([published("a")], [(replace(rollout, control="a"), published("b"))], asked(job="job 1"))
    answer = given(found, [(replace(rollout, control="a"), published("b"))], "job 1")
    assert (answer.recommendation.id, answer.reason, answer.rollout) == ("a", Reason.NEAREST, "")
    assert given(found, (), "", delivery=False).reason is Reason.DISABLED


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_marked_and_the_client_refuses_what_its_job_does_not_allow(format):
    rule = Rule(collective=ALL, group_size=8, algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=8)
    found = nearest([published(rules=(rule,))], topology_hash="x\r\nSet-Cookie: a=b $(reboot)")
    shape = {"cluster": "pair", "model": "toy", "nodes": 4, "gpus_per_node": 4, "nccl_version": "2.28.9"}
    table = format.endswith("csv") or format == "ncclx"
    sent = render(found, format=format if table else "json")
    for allow in ((), ("recorded", "simulated")):
        with pytest.raises(AnswerError, match="NEAREST, which this job does not allow"):
            written(sent, format, {**shape, "allow": allow})
    text = written(sent, format, {**shape, "allow": ("nearest",)})
    assert "NEAREST" in text or "NCCLT_NEAREST" in text
    assert "\r" not in text
    assert "$(reboot)" not in text or format == "json"
    if format == "json":
        assert marks_of(checked_document(json.loads(text))) == {"nearest"}


def test_an_offer_says_so():
    offer = offer_of(nearest([published()]), with_table=True)
    assert offer.nearest == ("nodes: measured with 2, asked for 4",)
    assert (offer.nodes, offer.ranks) == (4, 16)
    assert set(MARKS) == {"recorded", "simulated", "nearest"}
