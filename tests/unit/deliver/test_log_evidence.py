"""Reports and logs as they lie on disk, read into an attestation."""

from dataclasses import replace
from functools import partial

import pytest
from plugin_report import APPLIED, line
from plugin_report import write_report as write

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.attestation import Effect, Form, RowState
from ncclt.core.message import Collective
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision, PolicyVerdict, Verdict
from ncclt.deliver.log_evidence import attest_files, find_form, policy_from_recommendation, reported_tables
from ncclt.errors import TraceError, UsageError
from ncclt.testing.samples import sample_recommendation

write_report = partial(write, ranks=8, nodes=2, table="rec1")
NOW = "2026-01-01T00:00:00+00:00"
LOG = """\
n1:40:41 [0] NCCL INFO NCCL version 2.28.9+cuda12.9
n1:40:41 [0] NCCL INFO NCCL_ALGO set by environment to allgather:ring
n1:40:41 [0] NCCL INFO TUNER/Plugin: Could not find: libnccl-tuner.so
n1:40:41 [0] NCCL INFO ncclCommInitRankConfig comm 0xaa rank 0 nranks 8 cudaDev 0 commId 0x1 - Init START
n1:40:41 [0] NCCL INFO comm 0xaa rank 0 nRanks 8 nNodes 2 localRanks 4 localRank 0 MNNVL 0
n1:40:41 [0] NCCL INFO P2P Chunksize set to 131072
n1:40:41 [0] NCCL INFO AllGather: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}
n1:40:41 [0] NCCL INFO AllGather: 1048576 Bytes -> Algo TREE proto SIMPLE channel{Lo..Hi}={0..15}
n1:40:41 [0] NCCL INFO Broadcast: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
"""
RING = Rule(collective=Collective.ALL_GATHER, algorithm=Algorithm.RING)


def published(*rules, form=Form.TABLE, **parameters):
    verdict = Verdict(
        decision=Decision.TUNED, reason="", speedup=1.1, interval=(1.05, 1.2), blocks=6, default_us=11, policy_us=10
    )
    policy = Policy(rules=rules, parameters=tuple(parameters.items()))
    found = sample_recommendation("rec1")
    policy_verdict = PolicyVerdict(policy=policy, verdict=verdict)
    changed = {"fingerprint": replace(found.fingerprint, nccl_version="2.28.9")}
    changed |= {"table": policy_verdict} if form is Form.TABLE else {"variables": policy_verdict}
    return replace(found, collectives=frozenset({Collective.ALL_GATHER}), **changed)


@pytest.fixture
def table_rule():
    return Rule(
        collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=8, min_bytes=1024
    )


def test_reports_of_all_ranks_are_added_up(tmp_path, table_rule):
    rows = (
        line("all_reduce", 4096, 5, **APPLIED),
        line("all_reduce", 8192, 2, **APPLIED | {"outcome": "unavailable"}),
        line("all_reduce", 8, 3),
    )
    files = [write_report(tmp_path / f"{pid}", *rows, pid=pid, host=f"n{pid}") for pid in (1, 2)]
    found = attest_files(files, policy_from_recommendation(published(table_rule), Form.TABLE), created=NOW)

    assert (found.effect, found.hosts) == (Effect.PARTLY, 2)
    assert (found.calls_as_wanted, found.calls_differing, found.calls_unruled) == (10, 4, 6)
    assert [(one.table, one.count) for one in found.sources] == [("rec1", 2)]
    assert reported_tables(files) == ("rec1",)
    assert find_form(files) is Form.TABLE


def test_a_log_tells_what_nccl_did_with_variables(tmp_path):
    (tmp_path / "a.log").write_text(LOG)
    recommended = published(RING, form=Form.VARIABLES)
    found = attest_files([tmp_path / "a.log"], policy_from_recommendation(recommended, Form.VARIABLES), created=NOW)

    assert find_form([tmp_path / "a.log"]) is Form.VARIABLES
    assert (found.effect, found.calls_as_wanted, found.calls_differing, found.calls_unruled) == (Effect.PARTLY, 1, 1, 1)
    # The line tells one rank's part; the message is that of all eight.
    assert {(row.size_bytes, row.group_size, row.state) for row in found.rows} == {
        (8192, 8, RowState.AS_WANTED),
        (8 << 20, 8, RowState.DIFFERS),
    }
    assert found.sources[0].nccl_version == "2.28.9"


def test_a_table_without_its_plugin(tmp_path, table_rule):
    (tmp_path / "a.log").write_text(LOG.replace("AllGather", "AllReduce"))
    found = attest_files(
        [tmp_path / "a.log"], policy_from_recommendation(published(table_rule), Form.TABLE), created=NOW
    )
    assert found.effect is Effect.NOT_AT_ALL
    assert "the plugin was not loaded: TUNER/Plugin: Could not find: libnccl-tuner.so" in found.reason


def test_files_of_another_kind_are_refused(tmp_path, table_rule):
    (tmp_path / "x").write_text("hello\n")
    delivered = policy_from_recommendation(published(table_rule), Form.TABLE)
    for files, said in (([tmp_path / "x"], "neither a report"), ([tmp_path / "no"], "does not exist")):
        with pytest.raises(TraceError, match=said):
            attest_files(files, delivered, created=NOW)
    one = write_report(tmp_path / "one")
    with pytest.raises(TraceError, match="given twice"):
        attest_files([one, one], delivered, created=NOW)


def test_what_delivers_nothing_cannot_take_effect():
    with pytest.raises(UsageError, match="delivers nothing as variables"):
        policy_from_recommendation(sample_recommendation("rec1"), Form.VARIABLES)


def test_one_job_is_told_from_the_next_and_not_from_itself(tmp_path, table_rule):
    delivered = policy_from_recommendation(published(table_rule), Form.TABLE)
    calls = line("all_reduce", 4096, 5, **APPLIED)
    first, other = write_report(tmp_path / "first", calls), write_report(tmp_path / "other", calls, started_us=9)
    ids = [
        attest_files([path], delivered, created=created).id
        for path, created in ((first, NOW), (first, "x"), (other, NOW))
    ]
    assert ids[0] == ids[1] != ids[2]
    assert attest_files([], delivered, created=NOW).id != attest_files([], delivered, created="x").id
