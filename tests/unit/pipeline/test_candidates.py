"""Candidates that real jobs try."""

from dataclasses import replace

import pytest

from ncclt.core.policy import Policy
from ncclt.core.recommendation import Decision
from ncclt.core.study import StudyState
from ncclt.core.trial import LIVE, TimesOrigin
from ncclt.deliver.answer import answer_from_recommendation
from ncclt.deliver.render.delivery import compare_numerics
from ncclt.errors import ConflictError
from ncclt.nccl.numerics import SameBits
from ncclt.pipeline.candidates import (
    UNTRIED,
    build_study,
    describe_policy,
    propose_candidates,
    publish_winner,
)
from ncclt.store import open_store


@pytest.fixture
def job(tmp_path):
    """Return a stored workload, its cluster, and the store."""
    with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        cluster = store.clusters.get("leonardo").sized(nodes=2, gpus_per_node=4, nccl_version=None)
        yield store.workloads.get("bert"), cluster, store


def test_candidates_claim_no_evidence_and_are_delivered(job):
    found = propose_candidates(*job[:2], by_plugin=True)
    assert len({one.id for one in found}) == 4
    for one in found:
        assert one.is_untried
        assert (one.table.verdict.decision, one.table.verdict.blocks) == (Decision.UNTRIED, 0)
        assert one.origin is TimesOrigin.MEASURED
        answer = answer_from_recommendation(one)
        assert answer.table or answer.variables
        assert answer.document["table_verdict"]["decision"] == "untried"


def test_same_job_gets_the_same_candidates(job):
    assert propose_candidates(*job[:2], by_plugin=True) == propose_candidates(*job[:2], by_plugin=True)


def test_deterministic_candidates_keep_the_bits_of_the_default(job):
    found = propose_candidates(*job[:2], by_plugin=False, deterministic=True)
    for one in found:
        assert compare_numerics(one, one.table.policy, by_variables=True).same_bits is SameBits.YES


def test_a_winner_and_its_study_are_stored_together_or_not_at_all(job, monkeypatch):
    *place, store = job
    (candidate,) = propose_candidates(*place, most=1, by_plugin=True)
    verdict = replace(UNTRIED, decision=Decision.TUNED, speedup=1.05, interval=(1.02, 1.08), blocks=8)

    def publish():
        study = build_study(*place, evidence=LIVE, reason="steps are faster")
        return publish_winner(candidate, verdict, study, store, baseline=(), backend="", ranks=8)

    with monkeypatch.context() as patch:
        patch.setattr("ncclt.store.revisions.note_event", fail)
        with pytest.raises(ConflictError):
            publish()
    assert store.studies.page().items == ()
    id, _line = publish()
    (entry,) = store.studies.page().items
    assert (entry.recommendation.id, entry.study.state, entry.study.reason) == (id, StudyState.DONE, "steps are faster")


def fail(*_arguments, **_more):
    raise ConflictError("made up: the revision cannot be published")


def test_policies_of_earlier_studies_come_first(job):
    earlier = Policy(parameters=(("BUFFSIZE", 2097152),))
    found = propose_candidates(*job[:2], by_plugin=True, earlier=[earlier])
    assert found[0].table.policy == earlier
    assert describe_policy(earlier) == "NCCL_BUFFSIZE=2097152"
