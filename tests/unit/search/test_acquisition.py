"""Expected gains against simulation, and what they must not promise."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ncclt.core.setting import Setting
from ncclt.search.acquisition import (
    _OWN_DOUBT,
    Posterior,
    estimate_gains,
    estimate_launch_gains,
    find_incumbent,
)

NOISE = 0.02**2


def posterior(
    mean,
    sigma,
    *,
    measured,
    reaches=None,
    own=None,
    weights=None,
):
    mean = np.array(mean, dtype=float)
    return Posterior(
        mean=mean,
        variance=np.broadcast_to(np.array(sigma, dtype=float) ** 2, mean.shape),
        measured=np.array(measured),
        reaches=np.ones(mean.shape, dtype=bool) if reaches is None else np.array(reaches),
        own=np.zeros(mean.shape, dtype=bool) if own is None else np.array(own),
        noise=NOISE,
        weights=np.full(mean.shape[1], 1 / mean.shape[1]) if weights is None else np.array(weights),
    )


def test_the_policy_takes_what_was_measured_and_is_clearly_faster():
    known = posterior([[-0.3, 0.2], [-0.5, -0.5], [-0.1, -0.004]], 0.02, measured=[True, False, True])

    now = find_incumbent(known)

    assert now.chosen[0] == 0
    assert now.chosen[1] < 0
    assert (now.value == [-0.3, 0.0]).all()
    assert now.second[0] == -0.1


def test_a_setting_that_does_not_reach_a_message_is_never_chosen_for_it():
    known = posterior([[-0.3, -0.3]], 0.02, measured=[True], reaches=[[True, False]])

    assert (find_incumbent(known).value == [-0.3, 0.0]).all()
    assert estimate_launch_gains(known, find_incumbent(known))[0, 1] == 0


def test_what_nccl_is_expected_to_choose_by_itself_promises_little_until_it_was_launched():
    """Where the cost model is right, such a launch is the default once more; where it errs, the launch tells all."""
    two = [[0.0, 0.0], [0.0, 0.0]]
    own = [[True, False], [False, False]]
    new = posterior(two, 0.1, measured=[False, False], own=own)
    gains = estimate_launch_gains(new, find_incumbent(new))
    assert gains[0, 0] == pytest.approx(_OWN_DOUBT * gains[1, 0])
    assert gains[0, 1] == gains[1, 1]

    known = posterior(two, 0.1, measured=[True, True], own=own)
    gains = estimate_launch_gains(known, find_incumbent(known))
    assert gains[0, 0] == gains[1, 0] > 0


def test_the_gain_of_a_new_setting_is_what_simulated_launches_bring(subtests):
    cases = [(-0.05, 0.1), (0.2, 0.2), (-0.2, 0.05), (0.0, 0.03)]
    for mean, sigma in cases:
        with subtests.test(mean=mean, sigma=sigma):
            known = posterior([[-0.1], [mean]], [[0.01], [sigma]], measured=[True, False])
            now = find_incumbent(known)
            draw = np.random.default_rng(3)
            total = sigma**2 + NOISE
            after = mean + sigma**2 / math.sqrt(total) * draw.standard_normal(400_000)
            brought = np.where(after < now.value[0], now.value[0] - after, 0.0).mean() * math.exp(now.value[0])

            assert estimate_launch_gains(known, now)[1, 0] == pytest.approx(brought, rel=0.02, abs=1e-5)


def test_a_repeat_is_worth_something_where_two_are_close_and_nothing_where_all_is_clear():
    close = posterior([[-0.30], [-0.29]], 0.02, measured=[True, True])
    clear = posterior([[-0.30], [0.50]], 0.02, measured=[True, True])

    assert estimate_launch_gains(close, find_incumbent(close)).sum(axis=1).min() > 1e-3
    assert estimate_launch_gains(clear, find_incumbent(clear))[1, 0] < 1e-9


def test_gains_are_the_mean_over_the_likely_hyperparameters():
    """What one of two models expects counts for half, where the mean of both would promise nothing."""
    calm = posterior([[-0.3], [0.0]], [[0.01], [0.01]], measured=[True, False])
    wild = posterior([[-0.3], [0.0]], [[0.01], [0.5]], measured=[True, False])
    both = replace(calm, mixture=((0.5, calm.mean, calm.variance), (0.5, wild.mean, wild.variance)))
    now = find_incumbent(calm)

    gains = estimate_launch_gains(both, now)

    np.testing.assert_allclose(gains, (estimate_launch_gains(calm, now) + estimate_launch_gains(wild, now)) / 2)
    assert gains[1, 0] > 10 * estimate_launch_gains(calm, now)[1, 0]


def test_a_step_towards_another_group_counts_what_the_whole_policy_would_win_per_launch():
    big = (("BUFFSIZE", 8 << 20),)
    settings = [Setting(channels=8), Setting(channels=8, parameters=big), Setting(channels=2, parameters=big)]
    known = posterior([[-0.1, -0.1], [-0.3, 0.5], [0.5, -0.3]], 0.01, measured=[True, False, False], weights=[0.5, 0.5])

    gains = estimate_gains(settings, known).gains

    expected = math.exp(-0.1) - math.exp(-0.3)
    assert gains[1] == pytest.approx(expected / 2 * 0.75, rel=0.1)
    assert gains[2] == pytest.approx(gains[1])


def test_of_a_group_that_was_not_begun_only_its_best_settings_are_worth_a_launch():
    big = (("BUFFSIZE", 8 << 20),)
    settings = [Setting(channels=8), *(Setting(channels=n, parameters=big) for n in (8, 2))]
    known = posterior([[-0.1], [-0.3], [0.5]], 0.01, measured=[True, False, False])
    assert estimate_gains(settings, known).gains[2] == 0
    assert estimate_gains(settings, known).by_message[1:].max() == 0


def test_a_policy_never_mixes_groups():
    big = (("BUFFSIZE", 8 << 20),)
    settings = [Setting(channels=8), Setting(channels=8, parameters=big)]
    known = posterior([[-0.3, 0.3], [0.3, -0.3]], 0.01, measured=[True, True])

    seen = estimate_gains(settings, known)

    assert seen.share == pytest.approx((math.exp(-0.3) + 1) / 2)
    assert (estimate_gains(settings, replace(known, mean=known.mean - 0.5)).share) < seen.share


def test_what_is_known_of_one_setting_of_a_group_is_not_taken_for_a_measurement_of_its_neighbour():
    """Whether a launch would only repeat what NCCL chooses by itself counts until it was launched."""
    settings = [Setting(), *(Setting(parameters=(("NCCL_BUFFSIZE", 1 << 20),), channels=n) for n in (8, 16))]
    known = posterior([[0.0], [-0.3], [-0.2]], [[1e-6], [0.02], [0.1]], measured=[True, True, False])
    doubted = replace(known, own=np.array([[False], [False], [True]]))

    gains = [estimate_gains(settings, each).gains[2] for each in (known, doubted)]

    assert gains[1] == pytest.approx(_OWN_DOUBT * gains[0])
    assert gains[0] > 0
