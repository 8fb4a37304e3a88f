"""The sampler as Optuna sees it, and the optuna_study around it."""

import itertools
from dataclasses import replace

import optuna
import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Claim, Phase, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.search.assemble import Times, collect_times
from ncclt.search.optuna_study import OptunaStudy
from ncclt.search.sampler import TRIALS, ExhaustedError, GaussianProcessSampler, candidate_settings
from ncclt.search.space import cluster_space, recorded_space
from ncclt.testing.samples import sample_study


@pytest.fixture
def space(cluster, workload):
    return cluster_space(workload.collectives, cluster, parameters={})


def launched(setting, workload, time_of, number=0):
    """A trial of all messages; one that fails has no times."""
    times = [time_of(setting, calls.message, number) for calls in workload.messages]
    outcome = next((us for us in times if isinstance(us, Outcome)), Outcome.OK)
    measured = zip(workload.messages, times, strict=True) if outcome is Outcome.OK else ()
    measurements = tuple(Measurement(message=calls.message, samples_us=(us,)) for calls, us in measured)
    result = TrialResult(outcome=outcome, measurements=measurements)
    score = None if outcome is not Outcome.OK else sum(times)
    return Trial(number=number, phase=Phase.SEARCH, setting=setting, repeat=0, result=result, score_us=score)


def constant(us):
    """Times of the two messages under any setting."""
    return lambda _setting, message, _number: us[0] if message.size_bytes < 1 << 20 else us[1]


def propose(sampler, trials, **options):
    return sampler.propose(collect_times(trials), trials, **options)


def walk(sampler, workload, time_of, launches, *, until=None):
    """Follow the sampler for some launches, the default's first; no further than to the setting that is looked for."""
    made = [launched(DEFAULT, workload, time_of)]
    while len(made) < launches and made[-1].setting != until:
        if (decision := propose(sampler, made)) is None:
            break
        made.append(launched(decision.setting, workload, time_of, len(made)))
    return made


def test_it_is_a_sampler_of_optuna(space, workload, cluster, landscape):
    """It reads the trials and what is running off the study, and draws a point of the space."""
    sampler = GaussianProcessSampler(space, workload, cluster)
    study = optuna.create_study(sampler=sampler)
    study.set_user_attr(TRIALS, made := [launched(DEFAULT, workload, landscape)])
    asked = [study.ask(dict(space.distributions)) for _ in range(3)]
    settings = [space.setting(trial.params) for trial in asked]

    assert settings[0] == propose(sampler, made).setting
    assert settings[2] == propose(sampler, made, running=settings[:2]).setting
    assert len(set(settings)) == 3
    study.set_user_attr(TRIALS, [launched(s, workload, landscape) for s in space.distinct])
    with pytest.raises(ExhaustedError):
        study.ask(dict(space.distributions))


def test_what_others_are_launching_is_neither_proposed_nor_forgotten(space, workload, cluster, landscape):
    sampler = GaussianProcessSampler(space, workload, cluster)
    made = [launched(DEFAULT, workload, landscape)]
    running = []
    for _ in range(8):
        running.append(propose(sampler, made, running=running).setting)

    assert len(set(running)) == 8
    assert len({(s.algorithm, s.protocol) for s in running}) >= 3
    assert propose(sampler, made, running=space.distinct) is None


def test_the_search_begins_with_every_pair_and_the_fewest_channels_of_the_two_best(workload, cluster):
    """Large messages, which wait for bandwidth, are not tried over one channel."""
    for size, extra in ((64 << 10, 2), (1 << 30, 0)):
        calls = replace(workload.messages[0], message=replace(workload.messages[0].message, size_bytes=size))
        only = replace(workload, messages=(calls,))
        space = cluster_space(only.collectives, cluster, parameters={})
        made = walk(GaussianProcessSampler(space, only, cluster), only, lambda *_: 100.0, 12)
        first = [trial.setting for trial in made[1:]]

        assert len({(s.algorithm, s.protocol) for s in first[:6]}) == 6
        few = [setting for setting in first[6:8] if setting.channels == 1]
        assert few == [replace(setting, channels=1) for setting in first[:extra]]


def test_the_same_launches_and_seed_give_the_same_choice(space, workload, cluster, landscape):
    samplers = (GaussianProcessSampler(space, workload, cluster, seed=4) for _ in range(2))
    first, second = (walk(sampler, workload, landscape, 14) for sampler in samplers)

    assert first == second


def test_a_pair_that_never_runs_is_given_up(space, workload, cluster, landscape):
    def ll_crashes(setting, message, number):
        return Outcome.CRASHED if setting.protocol is Protocol.LL else landscape(setting, message, number)

    made = walk(GaussianProcessSampler(space, workload, cluster), workload, ll_crashes, 24)

    failed = [trial.setting for trial in made if trial.score_us is None]
    assert 1 <= len(failed) <= len(made) / 3
    assert len(failed) == len(set(failed))


def test_three_failures_in_a_row_are_followed_by_a_pair_that_has_run(space, workload, cluster, landscape):
    sound = next(s for s in space.distinct if s.protocol is Protocol.SIMPLE)
    failures = [s for s in space.distinct if s.protocol is not None and s.protocol is not Protocol.SIMPLE][:3]
    made = [launched(s, workload, landscape) for s in (DEFAULT, sound)]
    made += [launched(s, workload, lambda *_: Outcome.CRASHED) for s in failures]

    sampler = GaussianProcessSampler(space, workload, cluster)
    after_two, setting = (propose(sampler, made[:count]).setting for count in (-1, None))

    assert (setting.algorithm, setting.protocol) == (sound.algorithm, sound.protocol)
    assert (after_two.algorithm, after_two.protocol) != (sound.algorithm, sound.protocol)


def test_a_proposal_says_what_it_is_made_for(workload, cluster):
    """Both messages take 100 µs; the small one is sent ten times as often."""
    rings = [Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=c) for c in (1, 2, 4, 8, 12, 16, 24)]
    made = [launched(s, workload, constant((100.0, 100.0))) for s in (DEFAULT, *rings[:6])]
    new = propose(GaussianProcessSampler(recorded_space(rings), workload, cluster), made)
    buffers = [Setting(parameters=(("BUFFSIZE", size),)) for size in (1 << 20, 8 << 20)]
    step = propose(GaussianProcessSampler(recorded_space(buffers), workload, cluster), made[:1])

    assert (new.setting, new.reason) == (rings[6], "new, most for all_reduce 16 KiB float32")
    assert (step.setting in buffers, step.reason) == (True, "new, as a step towards other process-wide parameters")


def test_a_parameter_that_helps_everything_is_found(workload, cluster):
    space = cluster_space(workload.collectives, cluster, parameters={"BUFFSIZE": (1 << 20, 8 << 20)})

    def time_of(setting, message, _number):
        base = 20.0 if message.size_bytes < 1 << 20 else 1000.0
        factor = 1.0 if setting.algorithm is None else 1.3
        return base * factor * (0.8 if dict(setting.parameters).get("BUFFSIZE") == 8 << 20 else 1.0)

    best = Setting(parameters=(("BUFFSIZE", 8 << 20),))

    made = walk(GaussianProcessSampler(space, workload, cluster), workload, time_of, 24, until=best)

    assert made[-1].setting == best


def times_of(settings):
    """Times of some settings, each faster than the one before."""
    messages = [Message(collective="all_reduce", dtype="float32", size_bytes=1 << e) for e in (14, 24)]
    rows = {s: dict(zip(messages, (20.0 - n, 900.0), strict=True)) for n, s in enumerate([DEFAULT, *settings])}
    return Times(by_setting=rows, launches={})


def test_the_pool_stays_small_in_a_space_of_many_parameters(workload, cluster):
    ladders = {"BUFFSIZE": (1 << 20, 2 << 20, 8 << 20, 16 << 20), "NTHREADS": (64, 128, 256)}
    space = cluster_space(workload.collectives, cluster, parameters=ladders)

    settings = candidate_settings(dict.fromkeys(space.distinct), times_of([]), ())

    assert len(space.distinct) > 1000
    assert len(settings) < 150
    assert all(len(s.parameters) <= 1 for s in settings)


def test_where_only_parameters_can_be_chosen_all_of_them_are_looked_at():
    two_steps_away = Setting(parameters=(("BUFFSIZE", 1 << 20), ("NTHREADS", 64)))
    space = dict.fromkeys([DEFAULT, Setting(parameters=(("BUFFSIZE", 1 << 20),)), two_steps_away])
    forced = dict.fromkeys([*space, Setting(algorithm=Algorithm.RING)])

    assert set(candidate_settings(space, times_of([]), ())) == {*space} - {DEFAULT}
    assert two_steps_away not in candidate_settings(forced, times_of([]), ())


def many_settings(count):
    kinds = itertools.product(Algorithm, Protocol, range(1, 65))
    return [Setting(algorithm=a, protocol=p, channels=c) for a, p, c in itertools.islice(kinds, count)]


def test_a_parameter_is_tried_with_the_default_and_the_five_best_settings():
    settings, big = many_settings(7), (("BUFFSIZE", 8 << 20),)
    space = dict.fromkeys([*settings, *(replace(s, parameters=big) for s in (DEFAULT, *settings))])

    found = candidate_settings(space, times_of(settings), ())

    assert {s for s in found if s.parameters} == {replace(s, parameters=big) for s in (DEFAULT, *settings[2:])}


def test_parameters_are_changed_one_at_a_time_from_those_of_the_six_best_settings():
    """Of seven buffer sizes that were launched, the worst is not gone on from."""
    sizes = [1 << 16 << n for n in range(7)]
    measured = [Setting(parameters=(("BUFFSIZE", size),)) for size in sizes]
    both = [Setting(parameters=(("BUFFSIZE", size), ("NTHREADS", 64))) for size in sizes]
    space = dict.fromkeys([DEFAULT, Setting(algorithm=Algorithm.RING), *measured, *both])

    assert {s for s in candidate_settings(space, times_of(measured), ()) if s in both} == {*both[1:]}


def test_what_a_user_enqueued_comes_first_and_is_marked(space, workload, cluster, landscape, tmp_path):
    url, good = f"sqlite:///{tmp_path / 'optuna.db'}", next(s for s in space.distinct if not s.is_default)
    optuna.create_study(storage=url, study_name="s").enqueue_trial(space.values(good))
    trials = [launched(DEFAULT, workload, landscape)]
    study = replace(sample_study("s"), cluster=cluster, workload=workload, seed=0)
    with OptunaStudy(space, study, storage_url=url) as optuna_study:
        optuna_study.resume(trials[0], trials)
        first, one = _started(optuna_study, trials, 1)
        trials.append(launched(one.setting, workload, landscape, 1))
        optuna_study.tell(one, trials[-1])
        second = optuna_study.propose(trials)

    assert (first.setting, first.reason) == (good, "enqueued by a user")
    assert 0 <= second.expected_gain < 1


def _started(optuna_study, trials, number, *, running=()):
    proposal = optuna_study.propose(trials, running=running)
    claim = Claim(number=number, setting=proposal.setting, repeat=0, phase=Phase.SEARCH)
    optuna_study.start(claim, proposal)
    return proposal, claim
