"""The recheck: what makes a recommendation stale, and what does not."""

import random
from dataclasses import replace

import pytest
from pair import PAIR

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.recheck import Freshness, Recheck
from ncclt.core.recommendation import Decision, Recommendation
from ncclt.core.study import Arm, Study, StudyState
from ncclt.core.trial import Outcome
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import InputError, NoRecommendationError, StudyStoppedError, UsageError
from ncclt.prove.interleave import Proof
from ncclt.prove.proof import build_policy_verdict
from ncclt.prove.recheck import RecheckRequest, compare, driver_before, recheck
from ncclt.testing.fakes import FakeRunner, FakeTrialLog

SIZES = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
WORKLOAD = Workload(
    name="w",
    messages=tuple(
        MessageCalls(
            message=Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size, group_size=4),
            calls_per_step=1.0,
        )
        for size in SIZES
    ),
    provenance=Provenance(source="test"),
)
POLICY = Policy(
    rules=(
        Rule(collective=Collective.ALL_REDUCE, max_bytes=1 << 20, algorithm=Algorithm.TREE, protocol=Protocol.LL),
        Rule(
            collective=Collective.ALL_REDUCE,
            min_bytes=(1 << 20) + 1,
            algorithm=Algorithm.RING,
            protocol=Protocol.SIMPLE,
        ),
    )
)


def times(*, seed, default=1.0, policy=0.9, largest=None, sigma=0.02):
    """Return a landscape of equal gains under noise, but perhaps for the largest message."""
    rng = random.Random(seed)

    def time_of(setting, message, _number):
        base = 10.0 + message.size_bytes / 1e5
        forced = policy if largest is None or message.size_bytes < SIZES[-1] else largest
        return base * (default if setting.is_default else forced) * rng.lognormvariate(0, sigma)

    return time_of


@pytest.fixture(scope="module")
def request_():
    """A recommendation with the launches that proved it."""
    return request_for(times(seed=1))


def request_for(time_of, *, today_of=None, arm=Arm.TABLE):
    trial_log = FakeTrialLog()
    today = {Arm.TODAY: Policy()} if today_of else {}
    Proof(
        runner=FakeRunner(PAIR, time_of),
        workload=WORKLOAD,
        trial_log=trial_log,
        policies={Arm.DEFAULT: Policy(), **today, arm: POLICY},
        runners={Arm.TODAY: FakeRunner(PAIR, today_of)} if today_of else {},
        interrupted=lambda: False,
        watch=lambda *_: None,
    ).run()
    table = build_policy_verdict(arm, POLICY, trial_log.trials(), WORKLOAD, min_effect=0.02)
    assert table.verdict.decision is Decision.TUNED
    found = Recommendation(
        id="r1",
        revision=1,
        study="s1",
        cluster="pair",
        model="w",
        workload_digest=WORKLOAD.digest(),
        collectives=WORKLOAD.collectives,
        fingerprint=PAIR.fingerprint(),
        table=table,
        variables=table if arm is Arm.VARIABLES else None,
        simulated=True,
        launcher="fake",
        created="t",
    )
    study = Study(
        id="s1",
        name="s",
        cluster=PAIR,
        workload=WORKLOAD,
        launcher="fake",
        simulated=True,
        process_wide=(),
        seed=0,
        state=StudyState.DONE,
    )
    return RecheckRequest(recommendation=found, study=study, trials=tuple(trial_log.trials()))


def checked(request, time_of, *, cluster=PAIR, interrupted=lambda: False, today_of=None):
    runner = FakeRunner(cluster, time_of)
    by_today = FakeRunner(cluster, today_of) if today_of else None
    said = {"watch": lambda *_: None, "now": lambda: "2026-01-01"}
    return recheck(request, runner, interrupted=interrupted, by_today=by_today, **said), runner


def test_a_document_that_is_no_check_is_an_error_of_the_input(request_, subtests):
    cases = [{"freshness": "stalish"}, {"launches": "many"}, {"changes": 1}, {"reasons": None}, {"changes": [1]}]
    for change in cases:
        with subtests.test(change=change):
            found, _ = checked(request_, times(seed=2))
            document = found.to_document() | change
            with pytest.raises(InputError, match="not a recheck"):
                Recheck.from_document(document)
            del document["id"]
            with pytest.raises(InputError, match="not a recheck"):
                Recheck.from_document(document)


def test_a_message_that_was_left_out_is_compared_with_nccls_own_times(subtests):
    """It was launched under a rule that lost, and is delivered without."""
    for seed in range(3, 8):
        with subtests.test(seed=seed):
            landscape = {"policy": 0.5, "largest": 1.15}
            request = request_for(times(seed=seed, **landscape))
            assert request.recommendation.table.policy.setting_for(WORKLOAD.messages[0].message).is_default
            found, _ = checked(request, times(seed=100 + seed, **landscape))
            assert (found.freshness, found.reasons) == (Freshness.FRESH, ())


def test_what_is_still_true_is_fresh_and_costs_few_launches(request_):
    found, runner = checked(request_, times(seed=2))

    assert (found.freshness, found.reasons, found.staleness) == (Freshness.FRESH, (), "")
    assert found.launches == 8
    assert len(runner.launches) == 2 * 4 + 2 * 4, "without a plugin a launch for each of the policy's settings"
    assert len(found.changes) == 1 + 2 * 5
    assert "64 MiB" in found.changes[1].what, "the message of most weight comes first"
    assert Recheck.from_document(found.to_document()) == found


def test_variables_that_were_proven_alone_are_measured_again():
    """A study publishes them as its table too, which no launch measured."""
    request = request_for(times(seed=1), arm=Arm.VARIABLES)
    assert request.recommendation.table == request.recommendation.variables
    found, _ = checked(request, times(seed=2))
    assert (found.freshness, found.launches) == (Freshness.FRESH, 8)


def test_what_changed_beyond_the_noise_is_stale(request_, subtests):
    cases = [({"policy": 1.05}, "gain of the policy over the default"), ({"largest": 1.3}, "64 MiB float32: gain")]
    for now, reason in cases:
        with subtests.test(now=now, reason=reason):
            found, _ = checked(request_, times(seed=2, **now))

            assert found.freshness is Freshness.STALE
            (change,) = [change for change in found.changes if reason in change.what][:1]
            said = f"({(change.ratio - 1) * 100:+.1f} %, noise explains {change.noise * 100:.1f} %)"
            assert 0.001 < change.noise < 0.2
            assert any(reason in sentence and sentence.endswith(said) for sentence in found.reasons)
            assert reason in found.staleness


def test_a_day_on_which_all_is_slower_is_a_note(request_):
    for factor in (0.7, 1.4):
        found, _ = checked(request_, times(seed=2, default=factor, policy=0.9 * factor))

        assert found.freshness is Freshness.FRESH
        (change,) = [
            change for change in found.changes if change.what == "all_reduce 64 MiB float32 under the default, us"
        ]
        assert change.changed
        assert change.ratio == pytest.approx(factor, rel=0.05)


def test_a_gain_that_grew_is_not_stale(request_):
    assert checked(request_, times(seed=2, policy=0.7))[0].freshness is Freshness.FRESH


def test_a_gain_that_went_is_seen_in_most_rechecks_and_a_healthy_one_is_hardly_ever_stale():
    """Twelve healthy clusters of each kind: quiet, and with launches that are a fifth slower in seven of ten cases."""

    def bimodal(*, seed, **_options):
        rng, slow = random.Random(seed), {}

        def time_of(setting, message, number):
            factor = slow.setdefault((setting, number), 1.2 if rng.random() < 0.7 else 1.0)
            return (10 + message.size_bytes / 1e5) * (1 if setting.is_default else 0.8) * factor

        return time_of

    for healthy in (times, bimodal):
        stale = [checked(request_for(healthy(seed=n)), healthy(seed=99 - n))[0].freshness for n in range(12)]
        assert stale.count(Freshness.STALE) <= 1
    lost = [checked(request_for(times(seed=n, policy=0.94)), times(seed=99 - n, policy=1.0))[0] for n in range(12)]
    assert sum(found.freshness is Freshness.STALE for found in lost) >= 10


def test_a_weaker_check_does_not_clear_a_stale_one(request_, subtests):
    """A recheck without findings must be able to see the earlier change."""
    cases = [
        ({"blocks": 1}, 0.02, "give at least --points 5 and --blocks 2"),
        ({"points": 3}, 0.02, "give at least --points 5 and --blocks 2"),
        ({"tolerance": 0.6}, 0.02, "give at least --points 5 and --blocks 2"),
        ({}, 0.15, "unnoticed"),
    ]
    for weaker, sigma, doubt in cases:
        with subtests.test(weaker=weaker, sigma=sigma, doubt=doubt):
            stale, _ = checked(request_, times(seed=2, policy=1.05))
            weak, _ = checked(replace(request_, earlier=(stale,), **weaker), times(seed=5, sigma=sigma))
            assert not any(change.changed for change in weak.changes)
            assert weak.freshness is Freshness.STALE
            assert doubt in weak.reasons[0]
            assert weak.reasons[1:] == stale.reasons, "the earlier reasons are kept"
            again, _ = checked(replace(request_, earlier=(weak, stale), **weaker), times(seed=5, sigma=sigma))
            assert again.reasons == weak.reasons
            whole, _ = checked(replace(request_, earlier=(weak, stale)), times(seed=4))
            assert whole.freshness is Freshness.FRESH


def test_an_unmeasured_change_keeps_it_stale(request_):
    lost, fresh = (checked(request_, times(seed=seed))[0] for seed in (2, 3))
    changes = tuple(
        replace(one, what="broadcast 1 KiB float32: gain", now=one.before / 2, changed=True) for one in lost.changes[:1]
    )
    stale = replace(lost, freshness=Freshness.STALE, reasons=("slow",), changes=changes)
    found, _ = checked(replace(request_, earlier=(stale,)), times(seed=3))
    assert "broadcast 1 KiB float32: gain, which changed by -50.0 %, was not measured" in found.reasons[0]
    found, _ = checked(replace(request_, earlier=(fresh, stale)), times(seed=3))
    assert found.freshness is Freshness.FRESH, "a fresh recheck came between"


def test_an_unknown_driver_or_topology_clears_no_difference(request_):
    """A recheck from where neither driver nor topology can be seen finds nothing, though both may still differ."""
    then = replace(PAIR, topology_hash="a")
    request = replace(measured_under(request_, "570.86.15"), driver_before="570.86.15")
    published = replace(request.recommendation, fingerprint=replace(then.fingerprint(), driver="570.86.15"))
    request = replace(request, recommendation=published)
    updated = replace(request, driver="580.65.06")
    for stale, known, cluster, unknown in (
        (checked(updated, times(seed=2), cluster=then)[0], request, then, "NVIDIA driver"),
        (
            checked(request, times(seed=2), cluster=replace(then, topology_hash="b"))[0],
            replace(request, driver="570.86.15"),
            PAIR,
            "topology hash",
        ),
    ):
        found, _ = checked(replace(known, earlier=(stale,)), times(seed=3), cluster=cluster)
        assert found.reasons == (f"too weak to clear the earlier recheck: {unknown} not known here", *stale.reasons)
        seen = replace(request, driver="570.86.15", earlier=(found, stale))
        assert checked(seen, times(seed=3), cluster=then)[0].freshness is Freshness.FRESH
    accepted = replace(request, driver_may_differ=True, earlier=(checked(updated, times(seed=2), cluster=then)[0],))
    assert checked(accepted, times(seed=3), cluster=then)[0].freshness is Freshness.FRESH


def test_gain_over_today_is_measured_again_and_makes_nothing_stale(subtests):
    """It concerns jobs with those variables alone; others are served by the gain over the default."""
    request = request_for(times(seed=1), today_of=times(seed=5, default=1.1))
    for now, changed in ((1.1, False), (0.95, True)):
        with subtests.test(now=now):
            found, _ = checked(request, times(seed=2), today_of=times(seed=6, default=now))
            (change,) = (one for one in found.changes if one.what == "gain of the policy over what you run today")
            assert (change.changed, found.freshness, found.launches) == (changed, Freshness.FRESH, 8)
            assert change.before == pytest.approx(1.1 / 0.9, rel=0.03)
    lost, _ = checked(request, times(seed=2), today_of=lambda *_: Outcome.CRASHED)
    other, _ = checked(request_for(times(seed=1)), times(seed=2), today_of=times(seed=6))
    assert lost.changes == checked(request, times(seed=2))[0].changes
    assert not {"gain of the policy over what you run today"} & {one.what for one in (*lost.changes, *other.changes)}


def test_as_many_launches_clear_a_failure(request_):
    fails, _ = checked(request_, times(seed=2))
    stale = replace(fails, freshness=Freshness.STALE, reasons=("the policy fails",), changes=(), launches=9)
    found, _ = checked(replace(request_, earlier=(stale,)), times(seed=3))
    assert "8 launches, the earlier recheck had 9" in found.reasons[0]
    found, _ = checked(replace(request_, earlier=(replace(stale, launches=8),)), times(seed=3))
    assert found.freshness is Freshness.FRESH


def test_noise_alone_hardly_ever_makes_it_stale(request_):
    stale = sum(checked(request_, times(seed=seed))[0].freshness is Freshness.STALE for seed in range(10, 60))

    assert stale <= 2


def test_other_variables_of_the_site_are_refused_and_say_nothing(request_):
    """A timer without the site's exports would else make what jobs get stale."""
    site = replace(PAIR, site_variables=(("NCCL_IB_TC", "3"),))
    request = replace(request_, recommendation=replace(request_.recommendation, fingerprint=site.fingerprint()))
    with pytest.raises(UsageError, match=r"other ones here: none; .* was measured with NCCL_IB_TC=3"):
        checked(request, times(seed=2))
    assert checked(request, times(seed=2), cluster=site)[0].freshness is Freshness.FRESH


@pytest.mark.parametrize(("field", "value"), [("nccl_version", "2.30.7"), ("topology_hash", "b")])
def test_another_nccl_or_topology_needs_no_launch(request_, field, value):
    then = replace(PAIR, topology_hash="a")
    request = replace(request_, recommendation=replace(request_.recommendation, fingerprint=then.fingerprint()))

    found, runner = checked(request, times(seed=2), cluster=replace(then, **{field: value}))

    assert found.freshness is Freshness.STALE
    assert value in found.reasons[0]
    assert runner.launches == []


def test_a_policy_that_fails_is_stale_at_once(request_):
    good = times(seed=2)

    def wrong(setting, message, number):
        return good(setting, message, number) if setting.is_default else Outcome.WRONG_RESULT

    found, runner = checked(request_, wrong)

    assert "wrong_result" in found.reasons[0]
    assert len(runner.launches) == 3


def test_a_default_that_fails_says_nothing_about_the_recommendation(request_):
    with pytest.raises(StudyStoppedError, match="does not run here"):
        checked(request_, lambda *_: Outcome.TIMEOUT)


def test_what_delivers_nothing_or_lost_its_evidence_is_not_checked(request_):
    table = request_.recommendation.table
    kept = replace(table, verdict=replace(table.verdict, decision=Decision.UNDECIDED))
    with pytest.raises(NoRecommendationError, match="nothing to recheck"):
        checked(replace(request_, recommendation=replace(request_.recommendation, table=kept)), times(seed=2))
    with pytest.raises(NoRecommendationError, match="outdated"):
        checked(replace(request_, trials=()), times(seed=2))


def test_simulated_and_measured_times_are_not_compared(request_):
    with pytest.raises(UsageError, match="cannot be compared"):
        checked(
            replace(request_, recommendation=replace(request_.recommendation, simulated=False, launcher="slurm")),
            times(seed=2),
        )


def test_an_interrupted_check_says_nothing(request_):
    assert checked(request_, times(seed=2), interrupted=lambda: "told to stop")[0] is None


def test_a_senseless_request_is_refused(request_, subtests):
    cases = [{"points": 2}, {"points": 7}, {"blocks": 0}, {"tolerance": 0.0}]
    for values in cases:
        with subtests.test(values=values), pytest.raises(UsageError):
            replace(request_, **values)


def measured_under(request, driver):
    fingerprint = replace(request.recommendation.fingerprint, driver=driver)
    return replace(request, recommendation=replace(request.recommendation, fingerprint=fingerprint))


def test_another_driver_is_a_reason_where_both_are_known(request_, subtests):
    cases = [
        ("570.86.15", "580.65.06", True),
        ("570.86.15", "570.86.15, 580.65.06", True),
        ("570.86.15", "570.86.15", False),
        ("", "580.65.06", False),
        ("570.86.15", "", False),
    ]
    for before, now, stale in cases:
        with subtests.test(before=before, now=now, stale=stale):
            request = replace(measured_under(request_, before), driver=now, driver_before=before)

            found, runner = checked(request, times(seed=2))

            assert (found.freshness is Freshness.STALE, runner.launches == []) == (stale, stale)
            assert found.driver == now
            said = f"the NVIDIA driver is {now} here and was {before} (--new-driver measures under it)"
            assert found.reasons == ((said,) if stale else ())


def test_a_new_driver_under_which_nothing_changed_is_the_one_from_then_on(request_):
    request = replace(
        measured_under(request_, "570.86.15"), driver="580.65.06", driver_before="570.86.15", driver_may_differ=True
    )
    stale, _ = checked(replace(request, driver_may_differ=False), times(seed=2))
    fresh, runner = checked(request, times(seed=2))
    slower, _ = checked(request, times(seed=2, policy=1.05))

    assert (fresh.freshness, slower.freshness) == (Freshness.FRESH, Freshness.STALE)
    assert runner.launches
    assert Recheck.from_document(fresh.to_document()) == fresh
    published = request.recommendation
    assert driver_before(published, []) == "570.86.15"
    assert driver_before(published, [slower, stale]) == "570.86.15"
    assert driver_before(published, [stale, fresh, stale]) == "580.65.06"


def test_a_check_of_before_the_driver_was_kept_is_read(request_):
    found, _ = checked(request_, times(seed=2))
    document = found.to_document()
    del document["driver"]

    assert Recheck.from_document(document) == found


def draws(seed, *, centre, sigma, count):
    rng = random.Random(seed)
    return [centre * rng.lognormvariate(0, sigma) for _ in range(count)]


def test_a_clear_but_small_change_is_tolerated():
    change = compare("x", [100.0, 100.1, 99.9, 100.0], [105.0, 105.1, 104.9, 105.0], tolerance=0.1)

    assert not change.changed
    assert change.noise < 0.05


def test_launches_that_agree_by_chance_do_not_make_noise_vanish():
    assert compare("x", [100.0] * 4, [100.0] * 4, tolerance=0.0).noise > 0.01


def test_one_outlier_is_no_change():
    assert not compare("x", [100, 101, 99, 100, 102, 98, 100, 101], [100, 500, 101, 99], tolerance=0.1).changed


def test_noise_alone_is_hardly_ever_a_change():
    changed = sum(
        compare(
            "x",
            draws(2 * seed, centre=1, sigma=0.1, count=8),
            draws(2 * seed + 1, centre=1, sigma=0.1, count=4),
            tolerance=0.02,
        ).changed
        for seed in range(500)
    )

    assert changed <= 10
