"""What was used against what was delivered."""

from dataclasses import replace

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.attestation import (
    MOST_ROWS,
    Attestation,
    CallOutcome,
    DeliveredPolicy,
    Effect,
    Form,
    LogEvidence,
    Observed,
    ObservedCall,
    RowState,
)
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule
from ncclt.deliver.attest import attest, policy_of_variables
from ncclt.errors import InputError

KIB, MIB = 1 << 10, 1 << 20
SMALL = Rule(
    collective=Collective.ALL_REDUCE, max_bytes=64 * KIB, algorithm=Algorithm.TREE, protocol=Protocol.LL, channels=4
)
LARGE = Rule(
    collective=Collective.ALL_REDUCE, min_bytes=64 * KIB + 1, algorithm=Algorithm.RING, protocol=Protocol.SIMPLE
)
PAIRS = Rule(collective=Collective.ALL_REDUCE, group_size=2, algorithm=Algorithm.RING, protocol=Protocol.LL)
TABLE = DeliveredPolicy(
    recommendation="r1",
    cluster="c",
    model="m",
    nccl_version="2.28.9",
    ranks=8,
    form=Form.TABLE,
    policy=Policy(rules=(SMALL, LARGE, PAIRS)),
    variables=(("NCCL_BUFFSIZE", "8388608"),),
)
REPORT = LogEvidence(kind="plugin-report", nccl_version="2.28.9", table="r1", checksum="aa", ranks=8, nodes=2, count=8)
USING = ("TUNER/Plugin: Using ncclt (v5)",)
LOG = LogEvidence(kind="nccl-log", nccl_version="2.28.9+cuda12.9")


def use(size, choice, calls=10, *, outcome=CallOutcome.APPLIED, group=8, collective=Collective.ALL_REDUCE, remark=""):
    return ObservedCall(
        collective=collective,
        size_bytes=size,
        group_size=group,
        choice=choice,
        outcome=outcome,
        calls=calls,
        remark=remark,
    )


def seen(*uses, sources=(REPORT,), variables=None, **more):
    variables = variables or {}
    return Observed(sources=sources, calls=uses, variables=variables, tells_variables=bool(variables), hosts=1, **more)


def judged(observed, delivered=TABLE):
    return attest(delivered, observed, created="2026-01-01T00:00:00+00:00")


GOOD = (use(4 * KIB, "tree/ll/4"), use(MIB, "ring/simple"), use(4 * KIB, "ring/ll", group=2))


def test_everything_as_the_table_says_took_effect():
    found = judged(seen(*GOOD, use(8, "", collective=Collective.BROADCAST, outcome=CallOutcome.UNMATCHED)))
    assert found.effect is Effect.TOOK_EFFECT
    assert (found.calls_as_wanted, found.calls_differing, found.calls_unruled) == (30, 0, 10)
    assert {row.state for row in found.rows} == {RowState.AS_WANTED}
    assert Attestation.from_document(found.to_document()) == found


def test_a_table_speaks_of_the_whole_job_and_of_no_other_group():
    found = judged(seen(*GOOD, use(MIB, "", group=4, outcome=CallOutcome.UNMATCHED)))
    assert (found.effect, found.calls_unruled) == (Effect.TOOK_EFFECT, 10)


def test_a_choice_that_nccl_did_not_offer_is_named_with_its_cause():
    found = judged(seen(use(4 * KIB, "tree/ll/4", outcome=CallOutcome.UNAVAILABLE), use(MIB, "ring/simple")))
    (row,) = [row for row in found.rows if row.state is RowState.DIFFERS]
    assert (found.effect, row.size_bytes, row.wanted, row.used) == (Effect.PARTLY, 4 * KIB, "tree/ll/4", "")
    assert "does not offer this choice" in row.reason


CHUNK = (("NCCL_BUFFSIZE", "8388608"), ("NCCL_P2P_NET_CHUNKSIZE", "1048576"))


def test_a_chunk_other_than_delivered_did_not_take_effect_in_full(subtests):
    """Variables can arrive and still be clamped: by another buffer, or by the parent of a split communicator."""
    read = {name: (value,) for name, value in CHUNK}
    variables = replace(TABLE, form=Form.VARIABLES, policy=Policy(), variables=CHUNK)
    table = replace(TABLE, variables=CHUNK)
    for delivered, uses, sources in [(variables, (), (LOG,)), (table, GOOD, (REPORT,))]:
        for chunks, effect in [
            ((), Effect.TOOK_EFFECT),
            (((2, MIB),), Effect.TOOK_EFFECT),
            (((1, 512 * KIB), (2, MIB)), Effect.TOOK_EFFECT),
            (((2, 128 * KIB), (2, MIB)), Effect.PARTLY),
        ]:
            with subtests.test(form=delivered.form, chunks=chunks):
                found = judged(seen(*uses, sources=sources, variables=read, p2p_chunks=chunks), delivered)
                assert found.effect is effect
                assert ("P2P chunk of 128 KiB between nodes" in found.reason) is (effect is Effect.PARTLY)


def test_a_chunk_that_may_be_the_default_of_another_cpu_is_in_doubt(subtests):
    """NCCL doubles it on Arm since 2.29.2, and neither a delivery nor a log names the CPU."""
    pair = ("NCCL_P2P_NET_CHUNKSIZE", "65536")
    for version, effect in [("2.28.9", Effect.PARTLY), ("2.29.7", Effect.TOOK_EFFECT)]:
        with subtests.test(version=version):
            delivered = replace(TABLE, form=Form.VARIABLES, policy=Policy(), variables=(pair,), nccl_version=version)
            log = replace(LOG, nccl_version=version)
            observed = seen(sources=(log,), variables={pair[0]: (pair[1],)}, p2p_chunks=((2, 128 * KIB),))
            found = judged(observed, delivered)
            assert found.effect is effect
            assert any("cannot tell whether NCCL used" in note for note in found.notes) is (version == "2.29.7")


def logged(*tuner_lines, choice="tree/ll/2", **variables):
    """Return a log in which NCCL chose otherwise."""
    used = use(MIB, choice, outcome=CallOutcome.CHOSEN)
    read = {name: (value,) for name, value in variables.items()}
    return seen(used, sources=(LOG,), tuner_lines=tuner_lines, variables=read)


def test_what_did_not_take_effect_says_why(subtests):
    unmatched = use(MIB, "", outcome=CallOutcome.UNMATCHED, remark="it is for NCCL 2.27")
    not_found = "TUNER/Plugin: Could not find: /x/ncclt.so"
    cut_off = "/t.csv is not used: the file is cut off"
    for observed, said in [
        (
            seen(unmatched, sources=(replace(REPORT, not_in_use="it is for NCCL 2.27"),)),
            "no table: it is for NCCL 2.27",
        ),
        (logged(not_found, NCCL_BUFFSIZE="8388608"), f"the plugin was not loaded: {not_found}"),
        (logged(f"TUNER/ncclt: {cut_off}; keeping the NCCL default"), f"the plugin said: {cut_off}"),
        (logged(*USING, NCCL_BUFFSIZE="8388608", NCCL_ALGO="Tree"), "NCCL_ALGO=Tree in the job"),
        (logged(*USING, NCCL_DEBUG="INFO"), "did not get NCCL_BUFFSIZE: a container or launcher"),
        (logged(*USING, NCCL_BUFFSIZE="4194304"), "NCCL_BUFFSIZE was 4194304 in the job, not 8388608"),
        (seen(use(MIB, "tree/ll/2"), sources=(replace(REPORT, table="r0"),)), "used the table of r0"),
        (seen(use(MIB, "tree/ll/2"), sources=(replace(REPORT, nccl_version="2.27.3"),)), "loaded NCCL 2.27.3, not"),
        (logged(choice="ring_sym/4"), "0 of 10 calls"),
    ]:
        with subtests.test(observed=observed, said=said):
            found = judged(observed)
            assert found.effect is Effect.NOT_AT_ALL
            assert said in found.reason
            assert all(row.reason for row in found.rows)


def test_ranks_with_different_tables_are_the_first_thing_said():
    found = judged(seen(*GOOD, sources=(REPORT, replace(REPORT, checksum="bb"))))
    assert found.effect is Effect.PARTLY
    assert found.reason.startswith("the ranks did not use the same table: NCCL can hang")


def test_a_rank_that_used_no_table_while_others_did_is_the_same_danger():
    alone = replace(REPORT, table="", checksum="", not_in_use="it cannot be read", count=1)
    found = judged(seen(*GOOD, sources=(REPORT, alone)))
    assert "the ranks did not use the same table" in found.reason
    assert "it cannot be read" in found.reason


def test_a_group_for_which_the_table_has_no_rows_is_none():
    pairs = replace(REPORT, table="", checksum="", not_in_use="none of its rows is for 4 ranks", ranks=4)
    found = judged(seen(*GOOD, use(MIB, "", group=4, outcome=CallOutcome.UNMATCHED), sources=(REPORT, pairs)))
    assert (found.effect, found.calls_unruled) == (Effect.TOOK_EFFECT, 10)
    assert "none of its rows" not in found.reason


def test_a_call_without_a_row_says_so_where_nothing_else_is_known():
    found = judged(seen(use(4 * KIB, "", outcome=CallOutcome.UNMATCHED), use(MIB, "ring/simple")))
    (row,) = [row for row in found.rows if row.state is RowState.DIFFERS]
    assert row.reason == "the table that the job used has no row for it"


def test_a_plugin_that_has_no_rows_for_another_group_is_no_cause():
    said = "TUNER/ncclt: table r1 of /t.csv is not used: none of its 4 rows is for {} ranks on 1 nodes"
    for ranks, counts in ((1, False), (8, True)):
        observed = seen(use(MIB, "tree/ll/2"), sources=(REPORT,), tuner_lines=(*USING, said.format(ranks)))
        assert ("none of its 4 rows" in judged(observed).reason) is counts


def test_without_any_source_nothing_is_known():
    found = judged(seen(sources=()))
    assert found.effect is Effect.UNKNOWN
    assert "did a container pass" in found.reason
    assert {row.state for row in found.rows} == {RowState.NOT_SEEN}


def test_a_job_that_sent_other_messages_proves_nothing():
    found = judged(seen(use(MIB, "", collective=Collective.BROADCAST, outcome=CallOutcome.UNMATCHED)))
    assert (found.effect, found.calls_unruled) == (Effect.UNKNOWN, 10)


def test_fewer_channels_in_a_log_are_nccls_scheduling_and_more_are_another_choice():
    tuned = {"sources": (LOG,)}
    fewer = judged(seen(use(4 * KIB, "tree/ll/2", outcome=CallOutcome.CHOSEN), **tuned))
    more = judged(seen(use(4 * KIB, "tree/ll/8", outcome=CallOutcome.CHOSEN), **tuned))
    assert (fewer.effect, more.effect) == (Effect.TOOK_EFFECT, Effect.NOT_AT_ALL)
    assert any("fewer channels" in note for note in fewer.notes)


@pytest.mark.parametrize(
    ("choice", "state"),
    [("ring/ll", RowState.UNCERTAIN), ("ring/ll128", RowState.DIFFERS), ("tree/ll/4", RowState.UNCERTAIN)],
)
def test_a_group_that_the_log_does_not_tell_is_certain_only_where_no_rule_fits(choice, state):
    found = judged(seen(use(4 * KIB, choice, group=0, outcome=CallOutcome.CHOSEN), sources=(LOG,)))
    assert found.rows[0].state is state


def test_variables_alone_are_judged_by_what_nccl_read():
    given = replace(TABLE, form=Form.VARIABLES, policy=Policy())
    right = judged(seen(sources=(LOG,), variables={"NCCL_BUFFSIZE": ("8388608",)}), given)
    wrong = judged(seen(sources=(LOG,), variables={"NCCL_BUFFSIZE": ("1",)}), given)
    silent = judged(seen(sources=(LOG,)), given)
    assert [one.effect for one in (right, wrong, silent)] == [Effect.TOOK_EFFECT, Effect.NOT_AT_ALL, Effect.UNKNOWN]


def test_the_rows_are_bounded_and_what_differs_comes_first():
    many = [use(64 * KIB + 1 + i, "ring/simple") for i in range(2 * MOST_ROWS)]
    found = judged(seen(*many, use(8, "ring/ll/4")))
    assert (len(found.rows), found.rows[0].state) == (MOST_ROWS, RowState.DIFFERS)
    assert any("more kinds of messages" in note for note in found.notes)


def test_the_id_is_that_of_the_content_and_not_of_the_time():
    first, second = (attest(TABLE, seen(*GOOD), created=created) for created in ("a", "b"))
    assert first.id == second.id != judged(seen(*GOOD[:2])).id
    with pytest.raises(InputError, match="does not have the id"):
        Attestation.from_document({**first.to_document(), "effect": "partly"})
    with pytest.raises(InputError, match="not an attestation"):
        Attestation.from_document({**first.to_document(), "rows": [{}]})


def test_the_rules_behind_variables():
    version = NcclVersion(2, 28, 9)
    text = {"NCCL_ALGO": "allreduce:ring", "NCCL_MIN_CTAS": "16", "NCCL_MAX_CTAS": "8", "NCCL_BUFFSIZE": "8388608"}
    rules = {rule.collective: rule for rule in policy_of_variables(text, version).rules}
    ruled = rules[Collective.ALL_REDUCE]
    assert (ruled.algorithm, ruled.protocol, ruled.channels) == (Algorithm.RING, None, 8)
    assert (rules[Collective.BROADCAST].algorithm, rules[Collective.BROADCAST].channels) == (None, 8)
    assert policy_of_variables({"NCCL_BUFFSIZE": "8388608"}, version) == Policy()
