"""What every store must do with verifications, attestations and names, on whatever database (test_stores.py)."""

import math
from dataclasses import replace

import pytest
from full_records import fill_record
from sqlalchemy import text

from ncclt.core.attestation import CallOutcome as Chosen
from ncclt.core.attestation import Form, LogEvidence, Observed, ObservedCall
from ncclt.core.message import Collective
from ncclt.core.policy import Policy
from ncclt.core.setting import DEFAULT
from ncclt.core.study import Phase
from ncclt.core.ticket import Ticket
from ncclt.core.verification import Side, StepLaunch, Verification
from ncclt.deliver.attest import attest
from ncclt.deliver.log_evidence import policy_from_recommendation
from ncclt.errors import ConflictError, NotFoundError, StoreError
from ncclt.store import known_names
from ncclt.testing.samples import sample_cluster, sample_recommendation, sample_study, sample_trial, sample_workload


def sample_verification(id, *, cluster="pair", model="toy", recommendation="rec1"):
    """Return a verification whose numbers have no short decimal form."""
    verdict = sample_recommendation("a").table.verdict
    launches = (
        StepLaunch(side=Side.BASE, order=0, step_us=(0.1 + 0.2, 1e5 / 3)),
        StepLaunch(side=Side.TUNED, order=1, failure="exit code 1\nno µ \x00 \udc80"),
    )
    verdict = replace(verdict, interval=(0.0, math.inf))
    names = {"id": id, "cluster": cluster, "model": model, "recommendation": recommendation}
    return fill_record(Verification, **names, launches=launches, verdict=verdict)


def sample_attestation(recommendation, *, right=1.0):
    """Return an attestation of ten calls, a share of which went as they should; not all of its text is ASCII."""
    calls = {Chosen.APPLIED: round(10 * right), Chosen.UNAVAILABLE: 10 - round(10 * right)}
    uses = [
        ObservedCall(
            collective=Collective.ALL_REDUCE,
            size_bytes=1024,
            group_size=8,
            choice="tree/ll",
            outcome=outcome,
            calls=number,
        )
        for outcome, number in calls.items()
        if number
    ]
    source = LogEvidence(kind="plugin-report", nccl_version="2.28.9", table=recommendation)
    seen = Observed(sources=(source,), calls=tuple(uses), variables={}, hosts=1, notes=("µ \x00 \udc80",))
    return attest(
        policy_from_recommendation(sample_recommendation(recommendation), Form.TABLE), seen, created="2026-01-01"
    )


class VerificationsContract:
    """What every store must do with verifications."""

    def test_verifications_come_back_as_they_were_newest_first(self, store):
        first, second = sample_verification("a"), sample_verification("b", model="other", recommendation="")
        store.records.add_verification(first)
        store.records.add_verification(second)
        assert store.records.verifications() == (second, first)
        assert store.records.verifications(cluster="pair", model="toy") == (first,)
        assert store.records.verifications(recommendation="rec1") == (first,)
        assert store.records.verifications(cluster="elsewhere") == ()

    def test_a_verification_is_stored_once(self, store):
        store.records.add_verification(sample_verification("a"))
        with pytest.raises(StoreError, match="already stored"):
            store.records.add_verification(sample_verification("a", model="other"))
        assert len(store.records.verifications()) == 1

    def test_a_damaged_verification_is_an_error_of_the_store(self, store, store_url):
        store.records.add_verification(sample_verification("a"))
        self.execute(store_url, "UPDATE records SET document = '{}'")
        with pytest.raises(StoreError, match="verification a"):
            store.records.verifications()


class AttestationsContract:
    """What every store must do with attestations."""

    def test_an_attestation_is_kept_once_and_comes_back_newest_first(self, store):
        for id in ("a", "b"):
            store.revisions.publish(sample_recommendation(id))
        partly, well = sample_attestation("a", right=0.5), sample_attestation("a")
        assert [store.records.add_attestation(one) for one in (partly, well, replace(partly, created="later"))] == [
            True,
            True,
            False,
        ]
        assert store.records.attestations(["a", "b"]) == (well, partly)
        assert store.records.attestations(["a"], limit=1) == (well,)
        assert store.records.attestations(["b"]) == store.records.attestations([]) == ()
        assert store.records.effects(["a", "b"]) == {"a": "took-effect"}
        with pytest.raises(NotFoundError):
            store.records.add_attestation(sample_attestation("z"))

    def test_a_ticket_brings_one_attestation(self, store):
        store.revisions.publish(sample_recommendation("a"))
        ticket = fill_record(Ticket, job="1")
        sender = {"who": "key one", "address": "10.0.0.7"}
        first, second = sample_attestation("a"), sample_attestation("a", right=0.5)
        assert store.records.add_attestation(first, ticket=ticket, **sender)
        assert not store.records.add_attestation(first, ticket=ticket, **sender)
        with pytest.raises(ConflictError, match=f"the job 1 was attested already, as {first.id}"):
            store.records.add_attestation(second, ticket=ticket, **sender)
        assert store.records.attestations(["a"]) == (first,)
        assert store.records.add_attestation(second, ticket=replace(ticket, job="2"), **sender)
        with store._database.reading() as connection:
            kept = connection.execute(text("SELECT job, who, address FROM attested_jobs ORDER BY job")).all()
        assert [tuple(row) for row in kept] == [("1", "key one", "10.0.0.7"), ("2", "key one", "10.0.0.7")]

    def test_a_damaged_attestation_is_an_error_of_the_store(self, store, store_url):
        store.revisions.publish(sample_recommendation("a"))
        store.records.add_attestation(sample_attestation("a"))
        self.execute(store_url, "UPDATE records SET document = '{}'")
        with pytest.raises(StoreError, match=r"the attestation [0-9a-f]{32} in the store cannot be read"):
            store.records.attestations(["a"])


class ConfirmedTablesContract:
    """What every store must know of a launch of a whole table in the confirmation: it is none of a setting."""

    def test_a_confirmed_table_is_no_launch_of_the_default(self, store):
        store.studies.open(sample_study())
        table = replace(sample_trial(2, setting=DEFAULT, score_us=1.0), phase=Phase.CONFIRM, policy=Policy())
        first, again = (sample_trial(number, setting=DEFAULT, score_us=100.0 + number) for number in (0, 1))
        again = replace(again, phase=Phase.CONFIRM, result=replace(again.result, detail='says "policy":{}'))
        for one in (first, again, table):
            store.trials.add("abc123", one)

        (summary,) = store.studies.page().items
        assert (summary.trials, summary.best_us, summary.default_us) == (3, 100.5, 100.5)
        assert [one.number for one in store.trials.repeats("abc123", first, limit=9)] == [1]
        assert store.trials.find("abc123")[2] == table


class NamesContract:
    """What every store must know of names, and of its own readiness."""

    def test_every_name_is_known_that_was_shipped_added_or_published(self, store, store_url):
        store.revisions.publish(sample_recommendation("a"))
        store.clusters.add(replace(sample_cluster(), name="mine"))
        store.workloads.add(replace(sample_workload(), name="ours"))
        known = known_names(store_url)
        assert known.clusters >= {"leonardo", "mine", "pair"}
        assert known.workloads >= {"bert", "ours", "toy"}
        known.require(cluster="pair", model="ours")
        with pytest.raises(NotFoundError, match="no cluster 'minne' is known") as refused:
            known.require(cluster="minne", model="ours")
        assert "did you mean mine?" in refused.value.hint

    def test_whether_a_row_can_be_kept_is_found_out_without_one(self, store):
        before = store.workloads.entries()
        store.require_writable()
        store.require_writable()
        assert store.workloads.entries() == before
