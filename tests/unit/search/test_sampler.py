"""The sampler as Optuna sees it, and the optuna_study around it."""

import itertools
from collections import Counter
from dataclasses import replace

import optuna
import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Claim, Phase, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.search.assemble import collect_times
from ncclt.search.observations import Launch, observe
from ncclt.search.optuna_study import OptunaStudy
from ncclt.search.sampler import Sampler, candidate_settings
from ncclt.search.space import cluster_space, recorded_space
from ncclt.testing.samples import sample_study


@pytest.fixture
def space(cluster, workload):
    return cluster_space(workload.collectives, cluster, parameters={})


def launched(setting, workload, time_of, number=0):
    times = [time_of(setting, calls.message, number) for calls in workload.messages]
    return Launch(setting=setting, times_us=None if Outcome.CRASHED in times else tuple(times))


def walk(sampler, workload, time_of, launches, *, until=None):
    """Follow the sampler for some launches, the default's first; no further than to the setting that is looked for."""
    made = [launched(DEFAULT, workload, time_of)]
    while len(made) < launches and made[-1].setting != until:
        decision = sampler.propose(made)
        if decision is None:
            break
        made.append(launched(decision.setting, workload, time_of, len(made)))
    return made


def test_what_others_are_launching_is_neither_proposed_nor_forgotten(space, workload, cluster, landscape):
    sampler = Sampler(space, workload, cluster)
    made = [launched(DEFAULT, workload, landscape)]
    running = []
    for _ in range(8):
        running.append(sampler.propose(made, running=running).setting)

    assert len(set(running)) == 8
    assert len({(s.algorithm, s.protocol) for s in running}) >= 3


def test_while_others_launch_every_setting_the_default_is_launched_again(space, workload, cluster):
    """It is one side of each comparison; where nothing is left to compare, nothing is launched."""
    near = next(s for s in space.distinct if not s.is_default)
    made = [Launch(setting=DEFAULT, times_us=(20.0, 1000.0)), Launch(setting=near, times_us=(19.6, 985.0))]
    sampler = Sampler(space, workload, cluster)

    assert sampler.propose(made, running=space.distinct[1:]).setting == DEFAULT
    assert sampler.propose(made, running=space.distinct) is None


def test_the_same_launches_and_seed_give_the_same_choice(space, workload, cluster, landscape):
    first, second = (walk(Sampler(space, workload, cluster, seed=4), workload, landscape, 14) for _ in range(2))

    assert first == second


def test_a_pair_that_never_runs_is_given_up(space, workload, cluster, landscape):
    def ll_crashes(setting, message, number):
        return Outcome.CRASHED if setting.protocol is Protocol.LL else landscape(setting, message, number)

    made = walk(Sampler(space, workload, cluster), workload, ll_crashes, 24)

    failed = [launch.setting for launch in made if launch.times_us is None]
    assert 1 <= len(failed) <= len(made) / 3
    assert len(failed) == len(set(failed))


def test_a_failure_means_to_the_model_what_it_means_to_the_policy(space, cluster, workload, landscape):
    """One lost node does not rule a setting out; wrong data do, and failures that outweigh the good launches."""
    one, two, three, four = (launched(s, workload, landscape) for s in list(space.distinct)[-4:])
    crashed = [Launch(setting=launch.setting, times_us=None) for launch in (one, two, four)]
    wrong = Launch(setting=three.setting, times_us=None, wrong=True)
    made = [launched(DEFAULT, workload, landscape), one, one, crashed[0], two, crashed[1], three, three, wrong]
    made += [crashed[2], four]
    trials = [
        Trial(
            number=n,
            phase=Phase.SEARCH,
            setting=launch.setting,
            repeat=0,
            score_us=None,
            result=_result(launch, workload),
        )
        for n, launch in enumerate(made)
    ]

    known = set(observe(made).ratios)

    assert known == {one.setting}
    assert known == set(collect_times(trials).by_setting) - {DEFAULT}


def _result(launch, workload):
    if launch.times_us is None:
        return TrialResult(outcome=Outcome.WRONG_RESULT if launch.wrong else Outcome.CRASHED, measurements=())
    measurements = tuple(
        Measurement(message=calls.message, samples_us=(time_us,), wrong=None)
        for calls, time_us in zip(workload.messages, launch.times_us, strict=True)
    )
    return TrialResult(outcome=Outcome.OK, measurements=measurements)


def test_three_failures_in_a_row_are_followed_by_a_pair_that_has_run(space, workload, cluster, landscape):
    sound = next(s for s in space.distinct if s.protocol is Protocol.SIMPLE)
    failures = [s for s in space.distinct if s.protocol is not None and s.protocol is not Protocol.SIMPLE][:3]
    made = [launched(s, workload, landscape) for s in (DEFAULT, sound)]
    made += [Launch(setting=s, times_us=None) for s in failures]

    after_two, setting = (Sampler(space, workload, cluster).propose(made[:count]).setting for count in (-1, None))

    assert (setting.algorithm, setting.protocol) == (sound.algorithm, sound.protocol)
    assert (after_two.algorithm, after_two.protocol) != (sound.algorithm, sound.protocol)


def test_a_proposal_says_what_it_is_made_for(workload, cluster):
    """Both messages take 100 µs; the small one is sent ten times as often."""
    rings = [Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=c) for c in (8, 16)]
    sampler = Sampler(recorded_space(rings), workload, cluster)
    made = [Launch(setting=DEFAULT, times_us=(100.0, 100.0))] * 3
    new = sampler.propose(made)
    made += [Launch(setting=s, times_us=(us, us)) for s, us in zip(rings, (90.0, 89.0), strict=True)]
    repeat = sampler.propose(made)
    buffers = [Setting(parameters=(("BUFFSIZE", size),)) for size in (1 << 20, 8 << 20)]
    step = Sampler(recorded_space(buffers), workload, cluster).propose(made[:3])

    assert (new.setting in rings, new.reason) == (True, "new, most for all_reduce 16 KiB float32")
    assert (repeat.setting in rings, repeat.reason) == (True, "repeat to confirm, most for all_reduce 16 KiB float32")
    assert (step.setting in buffers, step.reason) == (True, "new, as a step towards other process-wide parameters")


def test_repeats_go_where_they_decide(space, workload, cluster):
    """Two settings share the lead within the noise and the rest is hopeless: the launches go to the leaders."""
    ring = [
        s for s in space.distinct if s.protocol is Protocol.SIMPLE and s.channels in (8, 16) and s.algorithm == "ring"
    ]

    def time_of(setting, _message, number):
        if setting.is_default:
            return 100.0
        return 88.0 + (number * 7 % 5) / 2 if setting in ring else 400.0

    made = walk(Sampler(recorded_space(ring), workload, cluster), workload, time_of, 10)

    counts = Counter(launch.setting for launch in made)
    assert all(counts[s] >= 2 for s in ring)


def test_a_parameter_that_helps_everything_is_found(workload, cluster):
    space = cluster_space(workload.collectives, cluster, parameters={"BUFFSIZE": (1 << 20, 8 << 20)})

    def time_of(setting, message, _number):
        base = 20.0 if message.size_bytes < 1 << 20 else 1000.0
        factor = 1.0 if setting.algorithm is None else 1.3
        return base * factor * (0.8 if dict(setting.parameters).get("BUFFSIZE") == 8 << 20 else 1.0)

    best = Setting(parameters=(("BUFFSIZE", 8 << 20),))

    made = walk(Sampler(space, workload, cluster), workload, time_of, 24, until=best)

    assert made[-1].setting == best


def test_the_pool_stays_small_in_a_space_of_many_parameters(workload, cluster):
    ladders = {"BUFFSIZE": (1 << 20, 2 << 20, 8 << 20, 16 << 20), "NTHREADS": (64, 128, 256)}
    space = cluster_space(workload.collectives, cluster, parameters=ladders)
    seen = observe([Launch(setting=DEFAULT, times_us=(20.0, 1000.0))])

    settings = candidate_settings(dict.fromkeys(space.distinct), seen, ())

    assert len(space.distinct) > 1000
    assert len(settings) < 150
    assert all(len(s.parameters) <= 1 for s in settings)


def test_where_only_parameters_can_be_chosen_all_of_them_are_looked_at(workload, cluster):
    seen = observe([Launch(setting=DEFAULT, times_us=(20.0, 1000.0))])
    two_steps_away = Setting(parameters=(("BUFFSIZE", 1 << 20), ("NTHREADS", 64)))
    space = dict.fromkeys([DEFAULT, Setting(parameters=(("BUFFSIZE", 1 << 20),)), two_steps_away])
    forced = dict.fromkeys([*space, Setting(algorithm=Algorithm.RING)])

    assert set(candidate_settings(space, seen, ())) == {*space} - {DEFAULT}
    for there in (forced, forced.keys() - {DEFAULT}):
        assert two_steps_away not in candidate_settings(dict.fromkeys(there), seen, ())


def many_settings(count):
    kinds = itertools.product(Algorithm, Protocol, range(1, 65))
    return [Setting(algorithm=a, protocol=p, channels=c) for a, p, c in itertools.islice(kinds, count)]


def test_of_more_than_400_settings_every_second_or_third_is_looked_at_and_what_was_launched(subtests):
    cases = [(400, 1), (401, 2), (801, 3)]
    for count, step in cases:
        with subtests.test(count=count, step=step):
            settings, times = many_settings(count), {DEFAULT: (20.0, 1000.0)}
            seen = observe([Launch(setting=s, times_us=us) for s, us in (times | {settings[1]: (19.0, 990.0)}).items()])

            found = candidate_settings(dict.fromkeys([DEFAULT, *settings]), seen, (settings[5],))

            assert found == tuple(dict.fromkeys([*settings[::step], settings[1], settings[5]]))


def test_a_parameter_is_tried_with_the_default_and_the_five_best_settings():
    settings, big = many_settings(7), (("BUFFSIZE", 8 << 20),)
    launches = [Launch(setting=s, times_us=(20.0 - n, 900.0)) for n, s in enumerate([DEFAULT, *settings])]
    space = dict.fromkeys([*settings, *(replace(s, parameters=big) for s in (DEFAULT, *settings))])

    found = candidate_settings(space, observe(launches), ())

    assert {s for s in found if s.parameters} == {replace(s, parameters=big) for s in (DEFAULT, *settings[2:])}


def test_parameters_are_changed_one_at_a_time_from_those_of_the_six_best_settings():
    """Of seven buffer sizes that were launched, the worst is not gone on from."""
    sizes = [1 << 16 << n for n in range(7)]
    measured = [Setting(parameters=(("BUFFSIZE", size),)) for size in sizes]
    launches = [Launch(setting=s, times_us=(20.0 - n, 900.0)) for n, s in enumerate([DEFAULT, *measured])]
    both = [Setting(parameters=(("BUFFSIZE", size), ("NTHREADS", 64))) for size in sizes]
    space = dict.fromkeys([DEFAULT, Setting(algorithm=Algorithm.RING), *measured, *both])

    assert {s for s in candidate_settings(space, observe(launches), ()) if s in both} == {*both[1:]}


def _trial(number, setting, workload, time_of):
    measured = tuple(
        Measurement(message=c.message, samples_us=(time_of(setting, c.message, number),)) for c in workload.messages
    )
    result = TrialResult(outcome=Outcome.OK, measurements=measured)
    return Trial(number=number, phase=Phase.SEARCH, setting=setting, repeat=0, result=result, score_us=1.0)


def test_what_a_user_enqueued_comes_first_and_is_marked(space, workload, cluster, landscape, tmp_path):
    url, good = f"sqlite:///{tmp_path / 'optuna.db'}", next(s for s in space.distinct if not s.is_default)
    optuna.create_study(storage=url, study_name="s").enqueue_trial(space.values(good))
    trials = [_trial(0, DEFAULT, workload, landscape)]
    study = replace(sample_study("s"), cluster=cluster, workload=workload, seed=0)
    with OptunaStudy(space, study, storage_url=url) as optuna_study:
        optuna_study.resume(trials[0], trials)
        first, one = _started(optuna_study, trials, 1)
        trials.append(_trial(1, one.setting, workload, landscape))
        optuna_study.tell(one, trials[-1])
        second = optuna_study.propose(trials)

    assert (first.setting, first.reason) == (good, "enqueued by a user")
    assert 0 <= second.expected_gain < 1


def _started(optuna_study, trials, number, *, running=()):
    proposal = optuna_study.propose(trials, running=running)
    claim = Claim(number=number, setting=proposal.setting, repeat=0, phase=Phase.SEARCH)
    optuna_study.start(claim, proposal)
    return proposal, claim
