"""Which published revision a request gets."""

import math
from dataclasses import replace
from functools import partial

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.cluster import hash_site
from ncclt.core.message import Collective
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import (
    Coverage,
    Decision,
    PolicyVerdict,
    Recommendation,
    Request,
    Verdict,
    changed_cluster,
    recommendation_id,
    replaced_workload,
)
from ncclt.core.recommendation import select as serve
from ncclt.errors import NoRecommendationError, StaleRecommendationError
from ncclt.testing.samples import sample_cluster, sample_recommendation

ANY = Request(cluster="pair", model="toy")
FIRST = replace(sample_recommendation("first"), created="2026-01-01", simulated=False, launcher="slurm")
OTHER_NCCL = replace(FIRST.fingerprint, nccl_version="2.99.1")
JOB = replace(ANY, nodes=2, gpus_per_node=FIRST.fingerprint.gpus_per_node, nccl_version=FIRST.fingerprint.nccl_version)
select = partial(serve, partly=True)  # as for people who look; what a job gets is more


def test_a_stale_one_of_another_nccl_takes_nothing_away():
    """A request that names no NCCL fits both; only of its own fingerprint a stale one is the last word."""
    stranger = replace(FIRST, id="stranger", fingerprint=OTHER_NCCL, created="2026-02-01", stale="NCCL is another one")
    assert select([stranger, FIRST], ANY) == FIRST
    assert select([replace(stranger, stale=""), FIRST], ANY).id == "stranger"
    with pytest.raises(StaleRecommendationError):
        select([replace(stranger, fingerprint=FIRST.fingerprint), FIRST], ANY)
    with pytest.raises(StaleRecommendationError):
        select([stranger, FIRST], replace(ANY, nccl_version="2.99.1"))


def test_one_measured_with_the_variables_of_the_jobs_site_comes_first():
    """Else who tunes last, in another shell, takes the answer from the jobs of all others."""
    traffic = {class_: (("NCCL_IB_TC", class_),) for class_ in ("41", "42", "43")}
    older, newer = (
        replace(FIRST, id=class_, fingerprint=replace(FIRST.fingerprint, site_variables=traffic[class_]))
        for class_ in ("41", "42")
    )
    for class_, given in (("41", "41"), ("42", "42"), ("43", "42")):
        assert serve([newer, older], replace(JOB, site=hash_site(traffic[class_]))).id == given
    assert serve([newer, older], JOB).id == "42", "a job that says nothing gets the newest"
    with pytest.raises(StaleRecommendationError):
        serve([newer, replace(older, stale="slower")], replace(JOB, site=hash_site(older.fingerprint.site_variables)))


def test_a_recorded_one_comes_after_a_measured_and_before_a_simulated_one():
    recorded = replace(FIRST, id="recorded", launcher="replay", recorded="recorded: box, site", created="2026-03-01")
    simulated = replace(FIRST, id="simulated", simulated=True, created="2026-04-01")
    assert select([simulated, recorded, FIRST], ANY) == FIRST
    assert select([simulated, recorded], ANY) == recorded
    assert select([recorded], ANY, is_recorded=True) == recorded
    assert [r.label for r in (simulated, recorded, FIRST)] == ["SIMULATED", "recorded: box, site", ""]
    assert replace(recorded, recorded="").label == "recorded: elsewhere"
    assert Recommendation.from_document(recorded.to_document()) == recorded
    assert "recorded" not in FIRST.to_document()


def test_a_simulated_one_never_takes_the_place_of_a_measured_one():
    """Not even where the measured one is stale, or of another NCCL."""
    simulated = replace(FIRST, id="simulated", simulated=True, created="2026-03-01")
    assert select([simulated, FIRST], ANY) == FIRST
    for fingerprint in (FIRST.fingerprint, OTHER_NCCL):
        with pytest.raises(StaleRecommendationError):
            select([replace(simulated, fingerprint=fingerprint), replace(FIRST, stale="slower")], ANY)


def test_the_next_command_is_for_the_job_that_asked():
    """All of its shape, quoted; a recording has one shape, so there it is the user's own cluster."""
    job = {"model": "my bert", "nodes": 4, "gpus_per_node": 8, "nccl_version": "2.27.1"}
    shape = "--nodes 4 --gpus-per-node 8 --nccl-version 2.27.1"
    with pytest.raises(NoRecommendationError) as nothing:
        select([], replace(ANY, **job))
    assert nothing.value.hint == f"run `ncclt tune --model 'my bert' --cluster {ANY.cluster} {shape}`"
    with pytest.raises(NoRecommendationError) as measured:
        select([FIRST], replace(ANY, **job))
    assert measured.value.hint.startswith(f"run `ncclt tune --model 'my bert' --cluster {ANY.cluster} {shape}` to tune")
    recorded = replace(FIRST, launcher="replay", recorded="recorded: box, site")
    with pytest.raises(NoRecommendationError) as unfit:
        select([recorded], replace(ANY, **job))
    assert unfit.value.hint.startswith(f"run `ncclt tune --model 'my bert' --cluster NAME {shape}` to tune")
    with pytest.raises(NoRecommendationError) as elsewhere:
        serve([recorded], JOB)
    assert "--cluster NAME" in elsewhere.value.hint
    assert "`--allow recorded`" in elsewhere.value.hint


def test_another_driver_is_no_other_fingerprint():
    """What was measured under the older driver is not served again when the newer one is stale."""
    newer = replace(
        FIRST, id="newer", created="2026-02-01", stale="slower", fingerprint=replace(FIRST.fingerprint, driver="570.86")
    )
    with pytest.raises(StaleRecommendationError):
        select([newer, FIRST], ANY)


def test_the_newest_is_what_came_last_and_no_clock_decides():
    """After one tune with the clock 700 days ahead all later ones would be hidden."""
    ahead, later = replace(FIRST, id="ahead", created="2028-01-01"), replace(FIRST, id="later", created="2026-02-01")
    assert serve([later, ahead], JOB) == later


def test_a_job_that_is_not_known_gets_nothing_but_a_list():
    """One line for each shape, newest first, with what is to be added; however often it was tuned."""
    other = replace(FIRST, id="other", fingerprint=OTHER_NCCL, stale="slower")
    newest = replace(FIRST, id="newest", simulated=True)
    with pytest.raises(NoRecommendationError, match="NCCL version not given") as refused:
        serve([newest, other, FIRST], replace(JOB, nccl_version=None))
    lines = refused.value.hint.splitlines()[1:]
    version = FIRST.fingerprint.nccl_version
    assert lines == [f"    --nccl-version {version}   (SIMULATED)", "    --nccl-version 2.99.1   (stale)"]
    assert [row["recommendation"] for row in refused.value.available] == ["newest", "other"]
    with pytest.raises(NoRecommendationError, match="nodes, GPUs per node, NCCL version not given"):
        serve([FIRST], ANY)
    with pytest.raises(NoRecommendationError, match="nodes: measured with 2, asked for 9") as unfit:
        serve([FIRST], replace(JOB, nodes=9))
    gpus = FIRST.fingerprint.gpus_per_node
    assert unfit.value.hint.endswith(f"\n    --nodes 2 --gpus-per-node {gpus} --nccl-version {version}")


def test_no_more_than_twenty_shapes_are_listed():
    nodes = [replace(FIRST, fingerprint=replace(FIRST.fingerprint, nodes=count)) for count in range(2, 30)]
    with pytest.raises(NoRecommendationError) as refused:
        serve(nodes, replace(JOB, nodes=None))
    assert [row["nodes"] for row in refused.value.available] == [*range(2, 22)]
    assert len(refused.value.hint.splitlines()) == 1 + 20


def test_it_is_stale_once_its_workload_has_other_messages():
    tuned = replace(FIRST, source_digest="then")
    assert "'toy' was replaced" in replaced_workload(tuned, "now")
    assert replaced_workload(tuned, "then") == replaced_workload(tuned, "") == ""
    assert replaced_workload(replace(FIRST, source_digest=""), "now") == ""


def test_it_is_stale_once_its_cluster_is_another_machine():
    """Where the job fits it at all: nodes, GPUs and NCCL are compared with what the job asks for."""
    pair = replace(sample_cluster(), nodes=2, topology_hash="t")
    tuned = replace(FIRST, fingerprint=pair.fingerprint())
    assert changed_cluster(tuned, pair) == changed_cluster(tuned, replace(pair, nodes=4)) == ""
    assert changed_cluster(tuned, None) == changed_cluster(tuned, replace(pair, topology_hash="")) == ""
    for gpu in ("A10", "Z99"):  # before and after it in the alphabet
        changed = changed_cluster(tuned, replace(pair, gpu=gpu))
        assert changed.endswith(f"since it was tuned: gpu: measured on {pair.gpu}, now {gpu}")
    other = replace(pair, gpu="B300")
    assert changed_cluster(tuned, replace(other, nodes=1)) == "", "two nodes are refused there"
    assert changed_cluster(tuned, replace(other, gpus_per_node=pair.gpus_per_node - 1)) == ""


@pytest.mark.parametrize(("variables", "expected"), [(False, "10ff6ff01d35"), (True, "27e603a1b94d")])
def test_the_same_content_has_the_id_that_it_always_had(variables, expected):
    verdict = Verdict(
        decision=Decision.TUNED,
        reason="6 % faster",
        speedup=1.06,
        interval=(1.03, math.inf),
        blocks=4,
        default_us=106.0,
        policy_us=100.0,
    )
    rule = Rule(
        collective=Collective.ALL_REDUCE,
        max_bytes=1 << 20,
        algorithm=Algorithm.RING,
        protocol=Protocol.LL128,
        channels=8,
    )
    table = PolicyVerdict(policy=Policy(rules=(rule,), parameters=(("BUFFSIZE", 8388608),)), verdict=verdict)
    by_variables = PolicyVerdict(policy=Policy(), verdict=verdict) if variables else None
    assert recommendation_id("study", table, by_variables, source_digest="digest", trials=12) == expected


def test_without_a_pair_to_choose_only_the_end_of_the_search_says_that_enough_was_tried(subtests):
    """send_recv and all_to_all have no pairs, and next to them a short all_reduce is worth none of its own."""
    for settings, converged, failed, enough in [
        (5, True, (), True),
        (5, False, (), False),
        (0, True, (), False),
        (5, True, ("ring/ll",), False),
    ]:
        for untried in ((), ("tree/ll",)):
            with subtests.test(settings=settings, converged=converged, failed=failed, untried=untried):
                nothing = {"measured": (), "channels": (), "failed": failed, "untried": untried}
                coverage = Coverage(settings=settings, converged=converged, **nothing)
                assert coverage.is_enough is enough
            assert "0 of 0" not in coverage.summary
