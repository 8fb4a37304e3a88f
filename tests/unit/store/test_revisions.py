"""Revisions in the store: states, approval by another person, pins, roll-outs, a history that stays."""

import threading
from dataclasses import replace

import pytest
from full_records import fill_record
from postgresql import new_database
from sqlalchemy import text

from ncclt.core.recommendation import Decision
from ncclt.core.revision import Action, Actor, ClusterRules, RevisionState
from ncclt.core.rollout import FIRST_STARTS, SAME_START_S, ArmState, JobStart, JobTime, RollOutState
from ncclt.core.verification import Verification
from ncclt.errors import ConflictError, NotFoundError, StoreError, UsageError
from ncclt.store import open_store, published, rolled_out, ticket_secret
from ncclt.testing.samples import TickingClock, sample_recommendation, settle

ON_SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
"""For rules that are decided in Python: the others show that both databases keep them."""

ANN, BOB = Actor(who="ann"), Actor(who="bob", why="looks right")
CANDIDATE, ACTIVE, RETIRED = RevisionState.CANDIDATE, RevisionState.ACTIVE, RevisionState.RETIRED


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/a.db"
    return new_database(request.getfixturevalue("postgresql"))


@pytest.fixture
def store(url):
    with open_store(url, clock=TickingClock()) as opened:
        yield opened


def publish(store, *ids, by=ANN, **how):
    return [store.revisions.publish(sample_recommendation(id), by=by, **how) for id in ids]


def roll_out(store, *ids, percent=10, **rules):
    """Publish revisions, the last of which is rolled out against the one before, and return its roll-out."""
    publish(store, *ids[:-1])
    store.revisions.set_rules(ClusterRules(cluster="pair", percent=percent, **rules), ANN)
    publish(store, ids[-1])
    (rollout,) = store.revisions.rollouts()
    return rollout


def states(store):
    return {one.id: one.state.value + ("!" if one.pinned else "") for one in store.revisions.statuses()}


def served(store, url):
    """Return what jobs are given; the fast way must say the same."""
    found = store.recommendations.newest(cluster="pair", model="toy")
    assert published(url, cluster="pair", model="toy") == found
    assert rolled_out(url, cluster="pair", model="toy") == store.recommendations.rolled_out(cluster="pair", model="toy")
    return [one.id for one in found]


def actions(store, **of):
    return [(event.action, event.recommendation, event.who) for event in reversed(store.revisions.history(**of))]


def began(store):
    return [event.why for event in store.revisions.history() if event.action is Action.ROLL_OUT_BEGAN]


def test_without_rules_the_newest_is_active_at_once(store, url):
    publish(store, "a", "b")
    assert states(store) == {"a": "retired", "b": "active"}
    assert served(store, url) == ["b"]
    assert actions(store) == [
        (Action.PUBLISHED, "a", "ann"),
        (Action.ACTIVATED, "a", "ann"),
        (Action.PUBLISHED, "b", "ann"),
        (Action.RETIRED, "a", "ann"),
        (Action.ACTIVATED, "b", "ann"),
    ]


def test_each_size_and_each_origin_has_an_active_revision(store, url):
    store.revisions.publish(sample_recommendation("a"))
    store.revisions.publish(sample_recommendation("b", nodes=1))
    for id, launcher in (("c", "slurm"), ("d", "slurm"), ("e", "replay")):
        store.revisions.publish(replace(sample_recommendation(id), simulated=False, launcher=launcher))
    store.revisions.publish(sample_recommendation("f", model="other"))
    assert served(store, url) == ["e", "d", "b", "a"]
    assert published(url, cluster="pair", model="unknown") == ()


@ON_SQLITE
def test_what_needs_approval_waits_for_another_person(store, url):
    publish(store, "a")
    store.revisions.set_rules(ClusterRules(cluster="pair", require_approval=True), ANN)
    publish(store, "b")
    assert (states(store)["b"], served(store, url)) == ("candidate", ["a"])
    assert [one.id for one in store.recommendations.newest_each()] == ["a"], "pages show what jobs get"
    before = store.recommendations.changes(0)[0]
    with pytest.raises(ConflictError, match="ann published the revision b, and pair requires another person"):
        store.revisions.approve("b", ANN)
    with pytest.raises(ConflictError, match="not approved"):
        store.revisions.activate("b", BOB)
    assert store.recommendations.changes(before)[1] == frozenset()
    assert store.revisions.approve("b", BOB) == ""
    assert (states(store), served(store, url)) == ({"a": "retired", "b": "active"}, ["b"])
    assert store.recommendations.changes(before)[1] == {("pair", "toy")}
    assert [e.why for e in store.revisions.history(recommendation="b") if e.action is Action.APPROVED] == [
        "looks right"
    ]


def test_of_two_approvers_at_once_one_wins_and_the_other_is_told_who(store, url):
    store.revisions.set_rules(ClusterRules(cluster="pair", require_approval=True), ANN)
    publish(store, "a")
    start, ends = threading.Barrier(2), []

    def approve(who):
        with open_store(url) as own:
            start.wait()
            try:
                ends.append(own.revisions.approve("a", Actor(who=who)))
            except ConflictError as error:
                ends.append(error.message)

    threads = [threading.Thread(target=approve, args=(who,)) for who in ("bob", "cleo")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    (lost,) = [end for end in ends if end]
    (winner,) = {who for _, _, who in actions(store, recommendation="a") if who != "ann"}
    assert f"{winner} did that" in lost
    assert "is active and no candidate any more" in lost
    assert [who for action, _, who in actions(store) if action is Action.APPROVED] == [winner]


@ON_SQLITE
def test_rolling_back_makes_an_earlier_revision_active_again(store, url):
    publish(store, "a", "b")
    store.revisions.roll_back("a", BOB)
    assert (states(store), served(store, url)) == ({"a": "active", "b": "retired"}, ["a"])
    with pytest.raises(ConflictError, match="a is active, and only a retired one can come back"):
        store.revisions.roll_back("a", BOB)
    publish(store, "c")
    assert served(store, url) == ["c"]


@ON_SQLITE
def test_what_nobody_approved_cannot_come_back_by_a_detour(store, url):
    store.revisions.set_rules(ClusterRules(cluster="pair", require_approval=True), ANN)
    publish(store, "a")
    store.revisions.retire("a", ANN)
    with pytest.raises(ConflictError, match="never active"):
        store.revisions.roll_back("a", ANN)
    with pytest.raises(ConflictError, match="never active"):
        store.revisions.pin("a", ANN)
    assert served(store, url) == []


def test_a_pin_holds_against_what_is_published_later(store, url):
    publish(store, "a", "b")
    store.revisions.pin("a", BOB)
    publish(store, "c")
    assert (states(store), served(store, url)) == ({"a": "active!", "b": "retired", "c": "candidate"}, ["a"])
    for change in (lambda: store.revisions.approve("c", BOB), lambda: store.revisions.roll_back("b", BOB)):
        with pytest.raises(ConflictError, match="pinned to the revision a"):
            change()
    with pytest.raises(ConflictError, match="is pinned"):
        store.revisions.retire("a", BOB)
    store.revisions.unpin("a", BOB)
    assert served(store, url) == ["a"]
    store.revisions.approve("c", BOB)
    assert served(store, url) == ["c"]
    with pytest.raises(ConflictError, match="not pinned"):
        store.revisions.unpin("a", BOB)


def test_the_history_cannot_be_changed_or_shortened(store, url):
    publish(store, "a", "b")
    before = store.revisions.history()
    for statement in ("UPDATE history SET who = 'x'", "DELETE FROM history", "DELETE FROM history WHERE sequence = 1"):
        with pytest.raises(StoreError, match="append-only"), store._database.writing() as connection:
            connection.execute(text(statement))
    assert store.revisions.history() == before
    assert [event.number for event in store.revisions.history(before=3)] == [2, 1]


def test_a_candidate_that_awaits_its_verification_becomes_active_by_it(store, url):
    publish(store, "a")
    publish(store, "b", unverified=True)
    with pytest.raises(ConflictError, match="must be verified"):
        store.revisions.approve("b", BOB)
    assert served(store, url) == ["a"]
    store.records.add_verification(verification("v1", "b", Decision.UNDECIDED))
    assert served(store, url) == ["a"]
    store.records.add_verification(verification("v2", "b", Decision.TUNED))
    assert (states(store)["b"], served(store, url)) == ("active", ["b"])
    assert Action.VERIFIED in [action for action, _, _ in actions(store, recommendation="b")]


@ON_SQLITE
def test_a_verified_candidate_still_waits_for_its_approval(store, url):
    store.revisions.set_rules(ClusterRules(cluster="pair", require_approval=True, require_verification=True), ANN)
    publish(store, "a")
    store.records.add_verification(verification("v", "a", Decision.TUNED))
    assert states(store) == {"a": "candidate"}
    store.revisions.approve("a", BOB)
    assert served(store, url) == ["a"]


def verification(id, recommendation, decision):
    verdict = replace(sample_recommendation("x").table.verdict, decision=decision)
    return fill_record(Verification, id=id, cluster="pair", model="toy", recommendation=recommendation, verdict=verdict)


def test_a_roll_out_leaves_the_active_one_to_the_others(store, url):
    publish(store, "a")
    store.revisions.set_rules(ClusterRules(cluster="pair", percent=10), ANN)
    publish(store, "b", "c")
    assert (states(store), served(store, url)) == ({"a": "active", "b": "candidate", "c": "candidate"}, ["a"])
    ((rollout, (candidate,)),) = store.recommendations.rolled_out(cluster="pair", model="toy")
    assert (candidate.id, rollout.control, rollout.percent) == ("b", "a", 10)
    assert began(store) == ["10 % of the jobs, against a, loss limit 1 %"]
    with pytest.raises(ConflictError, match="the revision b is being rolled out to 10 %"):
        store.revisions.approve("c", BOB)
    store.revisions.activate("b", BOB)
    assert (served(store, url), store.revisions.rollout(rollout.id).state) == (["b"], RollOutState.ENDED)


@ON_SQLITE
def test_a_first_revision_is_rolled_out_against_the_nccl_default(store, url):
    rollout = roll_out(store, "a", percent=50)
    assert (rollout.control, served(store, url)) == ("", ["a"])
    assert began(store) == ["50 % of the jobs, against the jobs' own settings, loss limit 1 %"]
    assert {rollout.start(f"job {n}", issued_s=0.0).recommendation for n in range(50)} == {"a", ""}


@pytest.mark.parametrize(
    ("state", "ends", "after"),
    [
        (ArmState.WON, RollOutState.PROMOTED, {"a": "retired", "b": "active"}),
        (ArmState.LOST, RollOutState.LOST, {"a": "active", "b": "retired"}),
        (ArmState.FUTILE, RollOutState.ENDED, {"a": "active", "b": "candidate"}),
    ],
)
def test_a_roll_out_ends_once(store, url, state, ends, after):
    rollout = roll_out(store, "a", "b", approve_wins=False)
    number = store.recommendations.changes(0)[0]
    assert settle(store, rollout, state, "so it is")
    assert not settle(store, rollout, ArmState.LOST, "again")
    assert states(store) == after
    assert store.recommendations.rolled_out(cluster="pair", model="toy") == ()
    assert store.recommendations.changes(number)[1] == {("pair", "toy")}
    assert ("guard", "so it is") in [(event.who, event.why) for event in store.revisions.history()]
    assert (store.revisions.rollout(rollout.id).state, store.revisions.rollout(rollout.id).reason) == (ends, "so it is")


def test_a_win_keeps_its_share_until_a_person_approves(store, url):
    rollout = roll_out(store, "a", "b")
    assert settle(store, rollout, ArmState.WON, "faster")
    assert not settle(store, rollout, ArmState.WON, "again")
    assert (states(store), served(store, url)) == ({"a": "active", "b": "candidate"}, ["a"])
    ((kept, (candidate,)),) = store.recommendations.rolled_out(cluster="pair", model="toy")
    assert (kept.state, kept.ended, kept.seed, candidate.id) == (RollOutState.WON, "", rollout.seed, "b")
    (won, *_) = store.revisions.history(recommendation="b")
    assert (won.action, won.why) == (Action.ROLL_OUT_WON, "faster; awaits approval, 10 % of the jobs keep it")
    with pytest.raises(ConflictError, match="approval gives it to all jobs, not to 50 %"):
        store.revisions.approve("b", BOB, percent=50)
    assert store.revisions.approve("b", BOB) == ""
    assert (states(store), served(store, url)) == ({"a": "retired", "b": "active"}, ["b"])
    assert store.recommendations.rolled_out(cluster="pair", model="toy") == ()
    assert (store.revisions.rollout(rollout.id).state, store.revisions.rollout(rollout.id).reason) == (
        RollOutState.PROMOTED,
        "faster",
    )


def test_a_paused_roll_out_gives_its_jobs_to_the_control_until_it_is_resumed(store, url):
    rollout = roll_out(store, "a", "b", percent=50, approve_wins=False)
    jobs = [f"job {number}" for number in range(9)]
    number = store.recommendations.changes(0)[0]
    early = next(job for job in map(str, range(99)) if rollout.find_arm(job) is not None)
    began = store.revisions.claim_start(rollout.id, early, issued_s=0.0)
    store.revisions.pause_rollout(rollout.id, BOB)
    assert store.recommendations.changes(number)[1] == {("pair", "toy")}
    assert served(store, url) == ["a"], "the later ranks of a job that began before ask here for its start"
    assert store.revisions.claim_start(rollout.id, early, issued_s=9.0) == began
    ((paused, _),) = store.recommendations.rolled_out(cluster="pair", model="toy")
    assert (paused.state, paused.percent, paused.reason) == (RollOutState.PAUSED, 0, "paused by bob: looks right")
    starts = [store.revisions.claim_start(rollout.id, job, issued_s=0.0) for job in jobs]
    assert {(start.recommendation, start.running) for start in starts} == {("a", ())}
    with pytest.raises(ConflictError, match="is paused"):
        store.revisions.pause_rollout(rollout.id, BOB)
    assert not settle(store, rollout, ArmState.WON, "faster"), "a person decides what jobs get, not the guard"
    store.revisions.resume_rollout(rollout.id, ANN)
    assert store.revisions.rollout(rollout.id) == rollout
    with pytest.raises(ConflictError, match="is running"):
        store.revisions.resume_rollout(rollout.id, ANN)
    assert [(event.action, event.recommendation, event.who) for event in store.revisions.history(limit=2)] == [
        (Action.ROLL_OUT_RESUMED, "b", "ann"),
        (Action.ROLL_OUT_PAUSED, "b", "bob"),
    ]
    store.revisions.pause_rollout(rollout.id, BOB)
    assert settle(store, rollout, ArmState.LOST, "hangs")
    assert states(store) == {"a": "active", "b": "retired"}


@ON_SQLITE
def test_a_won_roll_out_that_was_paused_awaits_approval_again(store, url):
    rollout = roll_out(store, "a", percent=50)
    settle(store, rollout, ArmState.WON, "faster")
    won = store.revisions.rollout(rollout.id)
    store.revisions.pause_rollout(rollout.id, BOB)
    assert served(store, url) == ["a"]
    store.revisions.resume_rollout(rollout.id, BOB)
    assert store.revisions.rollout(rollout.id) == won
    store.revisions.pause_rollout(rollout.id, BOB)
    store.revisions.approve("a", BOB)
    promoted = store.revisions.rollout(rollout.id)
    assert (promoted.state, promoted.reason) == (RollOutState.PROMOTED, "faster")


@ON_SQLITE
def test_a_win_that_turns_out_to_hang_is_lost(store, url):
    rollout = roll_out(store, "a")
    settle(store, rollout, ArmState.WON, "faster")
    assert settle(store, rollout, ArmState.LOST, "hangs")
    assert (states(store), served(store, url)) == ({"a": "retired"}, [])


def keep_default(id):
    found = sample_recommendation(id)
    verdict = replace(found.table.verdict, decision=Decision.KEEP_DEFAULT)
    return replace(found, table=replace(found.table, verdict=verdict))


@ON_SQLITE
def test_what_makes_no_difference_to_jobs_starts_no_roll_out(store, url):
    store.revisions.set_rules(ClusterRules(cluster="pair", percent=50), ANN)
    store.revisions.publish(keep_default("a"), by=ANN)
    assert (states(store), store.revisions.rollouts()) == ({"a": "active"}, ())
    store.revisions.publish(replace(keep_default("b"), variables=keep_default("b").table), by=ANN)
    assert (states(store), store.revisions.rollouts()) == ({"a": "retired", "b": "active"}, ())
    publish(store, "c")
    (rollout,) = store.revisions.rollouts()
    assert (rollout.arms[0].recommendation, rollout.control) == ("c", "b")
    store.revisions.activate("c", BOB)
    store.revisions.publish(replace(sample_recommendation("c"), id="d"), by=ANN)
    assert (states(store)["d"], len(store.revisions.rollouts())) == ("active", 1)


def test_the_first_start_of_a_job_counts_while_its_roll_out_is_open(store, url):
    rollout = roll_out(store, "a")
    start = JobStart(rollout=rollout.id, job="1", recommendation="", issued_s=0.1 + 0.2)
    later, other = replace(start, issued_s=9.0), replace(start, job="2", issued_s=0.1)
    store.revisions.add_job_starts([start, later])
    store.revisions.add_job_starts([other, start, replace(start, rollout="none")])
    assert store.revisions.job_starts(rollout.id) == (other, start)
    store.revisions.retire("a", BOB)
    store.revisions.add_job_starts([replace(start, job="3")])
    assert len(store.revisions.job_starts(rollout.id)) == 2


def arms_of(store, *ids, percent=50, **given):
    """Publish candidates for a roll-out against a, and approve them together; return it."""
    publish(store, "a")
    for id in ids:
        store.revisions.publish(sample_recommendation(id), by=ANN, for_rollout=True)
    id = store.revisions.approve(ids[0], BOB, arms=ids[1:], percent=percent, **given)
    return store.revisions.rollout(id)


def test_several_candidates_are_the_arms_of_one_roll_out(store, url):
    rollout = arms_of(store, "b", "c", "d", percent=60, max_cost=0.01)
    assert [(arm.recommendation, round(arm.share, 6)) for arm in rollout.arms] == [("b", 0.2), ("c", 0.2), ("d", 0.2)]
    assert (rollout.control, rollout.gpus, rollout.max_cost) == ("a", 8, 0.01)
    ((found, arms),) = store.recommendations.rolled_out(cluster="pair", model="toy")
    assert (found, [one.id for one in arms]) == (rollout, ["b", "c", "d"])
    assert rolled_out(url, cluster="pair", model="toy") == ((found, arms),)
    assert states(store) == {"a": "active", "b": "candidate", "c": "candidate", "d": "candidate"}
    assert {event.recommendation for event in store.revisions.history() if event.action is Action.ROLL_OUT_BEGAN} == {
        *"bcd"
    }
    assert store.revisions.rollouts(recommendation="c") == (rollout,)


@ON_SQLITE
def test_where_the_rules_set_no_share_the_control_gets_as_many_jobs_as_an_arm(store):
    assert arms_of(store, "b", "c", "d", percent=None).percent == 75


@ON_SQLITE
def test_candidates_that_cannot_be_compared_are_refused_together(store):
    publish(store, "a")
    for id, nodes in {"b": 2, "c": 2, "other": 4}.items():
        found = sample_recommendation(id, nodes=nodes)
        store.revisions.publish(found, by=ANN, for_rollout=True)
    for arms, percent, words in [
        (["other"], 50, "for different jobs"),
        (["b"], 50, "1 to 4 different revisions"),
        (list("cdefg"), 50, "1 to 4 different revisions"),
        (["c"], 100, "jobs without them to compare with"),
    ]:
        with pytest.raises(UsageError, match=words):
            store.revisions.approve("b", BOB, arms=arms, percent=percent)
    assert store.revisions.rollouts() == ()


def test_the_first_arm_that_wins_ends_the_others(store, url):
    rollout = arms_of(store, "b", "c")
    assert settle(store, rollout, ArmState.WON, "faster")
    after = store.revisions.rollout(rollout.id)
    assert [(arm.state, arm.reason) for arm in after.arms] == [(ArmState.WON, "faster"), (ArmState.ENDED, "b won")]
    assert (after.winner, after.percent, after.gain.pairs) == ("b", 25, 99)
    assert states(store)["c"] == "candidate"
    assert store.revisions.approve("b", BOB) == ""
    assert (served(store, url), store.revisions.rollout(rollout.id).state) == (["b"], RollOutState.PROMOTED)


@ON_SQLITE
@pytest.mark.parametrize(
    ("ends", "state", "after"),
    [
        ((ArmState.LOST, ArmState.LOST), RollOutState.LOST, {"b": "retired", "c": "retired"}),
        ((ArmState.FUTILE, ArmState.LOST), RollOutState.ENDED, {"b": "candidate", "c": "retired"}),
    ],
)
def test_a_roll_out_goes_on_until_no_arm_is_left(store, ends, state, after):
    rollout = arms_of(store, "b", "c")
    for arm, end in zip(rollout.arms, ends, strict=True):
        assert store.revisions.rollout(rollout.id).state is RollOutState.RUNNING
        store.revisions.settle_arms(rollout.id, [replace(arm, state=end, reason=f"{end}!")], BOB)
    found = store.revisions.rollout(rollout.id)
    assert (found.state, found.reason) == (state, f"b: {ends[0]}!; c: {ends[1]}!")
    assert states(store) == {"a": "active"} | after


@ON_SQLITE
def test_an_arm_that_is_retired_leaves_the_others(store):
    rollout = arms_of(store, "b", "c")
    store.revisions.retire("b", BOB)
    found = store.revisions.rollout(rollout.id)
    assert (found.state, found.running) == (RollOutState.RUNNING, (1,))
    store.revisions.retire("c", BOB)
    assert store.revisions.rollout(rollout.id).state is RollOutState.ENDED


def test_an_arm_pauses_at_its_starts_without_a_report(store, url):
    """An arm that hangs every job costs two starts and never more, whoever asks how fast."""
    rollout = arms_of(store, "b", "c", percent=80)
    number = store.recommendations.changes(0)[0]
    jobs = {id: [job for job in map(str, range(60)) if rollout.find_arm(job) == place] for place, id in enumerate("bc")}
    given = [store.revisions.claim_start(rollout.id, job, issued_s=1.0).recommendation for job in jobs["b"]]
    assert given == ["b"] * FIRST_STARTS + ["a"] * (len(given) - FIRST_STARTS)
    (paused, other) = store.revisions.rollout(rollout.id).arms
    assert (paused.state, paused.reason) == (ArmState.PAUSED, "2 starts without a report yet")
    assert other.state is ArmState.RUNNING
    assert store.recommendations.changes(number)[1] == {("pair", "toy")}
    started = store.revisions.claim_start(rollout.id, jobs["c"][0], issued_s=1.0)
    assert (started.recommendation, started.running) == ("c", (1,))


def test_a_start_is_decided_once(store, url):
    rollout = arms_of(store, "b")
    job = next(job for job in map(str, range(60)) if rollout.find_arm(job) == 0)
    first = store.revisions.claim_start(rollout.id, job, issued_s=1.0)
    assert (first.recommendation, store.revisions.find_start(rollout.id, job)) == ("b", first)
    settle(store, rollout, ArmState.LOST, "hangs")
    assert store.revisions.claim_start(rollout.id, job, issued_s=SAME_START_S) == first, "a rank that comes late"
    assert store.revisions.claim_start(rollout.id, job, issued_s=SAME_START_S + 1) is None, "another start of this name"
    assert store.revisions.claim_start(rollout.id, "new", issued_s=1.0) is None
    assert store.revisions.find_start(rollout.id, "new") is None


def test_every_process_signs_with_the_same_secret(store, url):
    with open_store(url) as other:
        assert other.ticket_secret() == store.ticket_secret() == ticket_secret(url)
    assert len(store.ticket_secret()) == 64


@ON_SQLITE
def test_where_all_jobs_get_what_is_new_a_roll_out_is_not_waited_for(store, url):
    publish(store, "a")
    store.revisions.set_rules(ClusterRules(cluster="pair", percent=99), ANN)
    publish(store, "b", "c")
    (rollout,) = store.revisions.rollouts()
    assert (states(store)["c"], rollout.arms[0].recommendation) == ("candidate", "b")
    store.revisions.set_rules(ClusterRules(cluster="pair", percent=100), ANN)
    publish(store, "d")
    assert (states(store)["d"], served(store, url)) == ("active", ["d"])


@ON_SQLITE
@pytest.mark.parametrize("change", ["pin", "retire"])
def test_whoever_takes_the_control_away_ends_the_roll_out(store, url, change):
    roll_out(store, "a", "b")
    getattr(store.revisions, change)("a", BOB)
    assert store.recommendations.rolled_out(cluster="pair", model="toy") == ()
    assert states(store)["b"] == "candidate"


@ON_SQLITE
def test_each_size_of_the_job_is_rolled_out_by_itself(store):
    for cluster, sizes in (("pair", (1, 2)), ("hall", (2, 1))):
        store.revisions.set_rules(ClusterRules(cluster=cluster, percent=10), ANN)
        for nodes in sizes:
            store.revisions.publish(sample_recommendation(f"{cluster} {nodes}", cluster=cluster, nodes=nodes), by=ANN)
    store.revisions.activate("pair 1", BOB)
    store.revisions.activate("hall 1", BOB)
    assert {one.arms[0].recommendation: one.state for one in store.revisions.rollouts()} == {
        "pair 1": RollOutState.ENDED,
        "pair 2": RollOutState.RUNNING,
        "hall 2": RollOutState.RUNNING,
        "hall 1": RollOutState.ENDED,
    }
    store.revisions.retire("pair 1", BOB)
    assert [one.id for _, (one,) in store.recommendations.rolled_out(cluster="pair", model="toy")] == ["pair 2"]


def test_the_first_step_time_of_a_job_counts(store, url):
    rollout = roll_out(store, "a")
    time = fill_record(JobTime, rollout=rollout.id, step_us=0.1 + 0.2)
    assert [store.revisions.add_job_time(one) for one in (time, replace(time, step_us=5.0))] == [True, False]
    (kept,) = store.revisions.job_times(rollout.id)
    assert replace(kept, created=time.created) == time
    with pytest.raises(NotFoundError, match="no roll-out 'x'"):
        store.revisions.add_job_time(replace(time, rollout="x"))


@ON_SQLITE
def test_bad_requests_are_refused_and_change_nothing(store, url):
    publish(store, "a")
    with pytest.raises(NotFoundError, match="no recommendation 'z'"):
        store.revisions.approve("z", BOB)
    with pytest.raises(ConflictError, match="a is active and no candidate any more: ann did that at 2026"):
        store.revisions.approve("a", BOB)
    for make in (
        lambda: ClusterRules(cluster="pair", percent=0),
        lambda: ClusterRules(cluster="pair", loss_limit=2.0),
        lambda: Actor(who="ann", why="x\n"),
        lambda: store.revisions.approve("a", BOB, percent=101),
    ):
        with pytest.raises(UsageError):
            make()
    assert states(store) == {"a": "active"}


def test_lists_are_of_what_was_asked_for_newest_first_and_not_longer(store, url):
    for cluster in ("pair", "hall"):
        store.revisions.set_rules(ClusterRules(cluster=cluster, percent=10), ANN)
    made = {"a": ("pair", "toy"), "b": ("hall", "toy"), "c": ("pair", "bert")}
    for id, (cluster, model) in made.items():
        store.revisions.publish(replace(sample_recommendation(id, model=model), cluster=cluster), by=ANN)

    def ids(found):
        return [one.arms[0].recommendation for one in found]

    assert ids(store.revisions.rollouts()) == ["c", "b", "a"]
    assert ids(store.revisions.rollouts(cluster="pair")) == ["c", "a"]
    assert ids(store.revisions.rollouts(recommendation="b")) == ["b"]
    assert ids(store.revisions.rollouts(limit=1)) == ["c"]
    for id, (cluster, model) in made.items():
        assert [one.id for _, (one,) in store.recommendations.rolled_out(cluster=cluster, model=model)] == [id]
    listed = [
        {},
        {"cluster": "pair"},
        {"model": "toy"},
        {"id": "a"},
        {"cluster": "hall", "model": "bert"},
        {"limit": 2},
    ]
    assert [[one.id for one in store.revisions.statuses(**of)] for of in listed] == [
        ["c", "b", "a"],
        ["c", "a"],
        ["b", "a"],
        ["a"],
        [],
        ["c", "b"],
    ]
    assert [event.action for event in store.revisions.history(cluster="hall")] == [
        Action.ROLL_OUT_BEGAN,
        Action.PUBLISHED,
        Action.RULES_CHANGED,
    ]
    began = next(event for event in store.revisions.history(cluster="hall") if event.action is Action.ROLL_OUT_BEGAN)
    assert (
        began.why.split(", loss limit ")[1].partition(" %")[0] == f"{100 * store.revisions.rollouts()[1].loss_limit:g}"
    )
    assert {event.recommendation for event in store.revisions.history(recommendation="a")} == {"a"}
    assert [event.number for event in store.revisions.history(limit=1)] == [len(store.revisions.history())]
    with pytest.raises(NotFoundError, match="no recommendation 'z'"):
        store.revisions.status("z")


def test_a_change_of_the_rules_is_told_once_and_in_full(store, url):
    store.revisions.publish(sample_recommendation("a"), by=ANN)
    store.revisions.publish(replace(sample_recommendation("b"), cluster="hall"), by=ANN)
    number = store.recommendations.changes(0)[0]
    strict = ClusterRules(cluster="pair", require_approval=True, percent=10, loss_limit=0.02)
    for by in (ANN, BOB):
        store.revisions.set_rules(strict, by)
    assert store.recommendations.changes(number)[1] == frozenset()
    assert store.revisions.rules("pair") == strict
    assert store.revisions.rules("hall") == ClusterRules(cluster="hall")
    store.revisions.set_rules(replace(strict, require_verification=True, delivery=False), BOB)
    assert store.recommendations.changes(number)[1] == {("pair", "toy")}
    store.revisions.set_rules(ClusterRules(cluster="pair"), ANN)
    told = [(e.who, e.why) for e in reversed(store.revisions.history()) if e.action is Action.RULES_CHANGED]
    share = "10 % of jobs at first, loss limit 2 %, wins need approval"
    usual = "100 % of jobs at first, loss limit 1 %, wins need approval"
    assert told == [
        ("ann", f"approval required, verification not required, {share}"),
        ("bob", f"delivery switched off, approval required, verification required, {share}: looks right"),
        ("ann", f"delivery switched on, approval not required, verification not required, {usual}"),
    ]


@ON_SQLITE
def test_what_a_state_does_not_allow_is_refused_with_what_would_be(store, url):
    publish(store, "a", "b")
    refused = [
        (store.revisions.pin, "a", None),
        (store.revisions.pin, "a", "pinned already"),
        (store.revisions.retire, "a", "is pinned"),
        (store.revisions.unpin, "b", "is not pinned"),
        (store.revisions.retire, "b", "retired already"),
        (store.revisions.roll_back, "b", "pinned to the revision a"),
        (store.revisions.roll_back, "a", "only a retired one can come back"),
    ]
    for do, id, why in refused:
        if why is None:
            do(id, ANN)
            continue
        with pytest.raises(ConflictError, match=why):
            do(id, ANN)
    store.revisions.set_rules(ClusterRules(cluster="pair", require_approval=True), ANN)
    publish(store, "c")
    for do, why in (
        (store.revisions.pin, "is a candidate"),
        (store.revisions.roll_back, "is candidate"),
        (store.revisions.activate, "not approved"),
    ):
        with pytest.raises(ConflictError, match=why):
            do("c", BOB)
    assert states(store) == {"a": "active!", "b": "retired", "c": "candidate"}


def test_step_times_are_those_of_one_roll_out(store, url):
    for cluster in ("pair", "hall"):
        store.revisions.set_rules(ClusterRules(cluster=cluster, percent=10), ANN)
        store.revisions.publish(replace(sample_recommendation(cluster), cluster=cluster), by=ANN)
    first, second = reversed(store.revisions.rollouts())
    for rollout, jobs in ((first, ("2", "1", "3")), (second, ("1",))):
        for job in jobs:
            assert store.revisions.add_job_time(
                JobTime(rollout=rollout.id, job=job, recommendation="", step_us=1.0, steps=1)
            )
    assert [time.job for time in store.revisions.job_times(first.id)] == ["2", "1", "3"]
    assert [time.job for time in store.revisions.job_times(second.id)] == ["1"]
