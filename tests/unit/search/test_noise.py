"""What some launches of one setting say together."""

import math
import random

import pytest

from ncclt.search.noise import USUAL_SIGMA, launch_sigma, typical_us


def test_one_launch_says_what_it_says():
    assert typical_us([17.3], USUAL_SIGMA) == 17.3


def test_a_disturbed_launch_does_not_count(subtests):
    cases = [[100.0, 500.0], [500.0, 100.0], [100.0, 500.0, 101.0], [99.0, 101.0, 100.0, 300.0]]
    for times in cases:
        with subtests.test(times=times):
            assert typical_us(times, USUAL_SIGMA) == pytest.approx(100.0, rel=0.01)


def test_a_launch_is_disturbed_beyond_six_standard_deviations(subtests):
    cases = [(5.9, True), (6.1, False)]
    for sigmas, counted in cases:
        with subtests.test(sigmas=sigmas, counted=counted):
            slow = 100.0 * math.exp(sigmas * USUAL_SIGMA)

            expected = 100.0 * math.exp(sigmas * USUAL_SIGMA / 3) if counted else 100.0
            assert typical_us([100.0, slow, 100.0], USUAL_SIGMA) == pytest.approx(expected)


def test_launches_that_agree_are_averaged():
    assert typical_us([17.3, 17.3], 0.0) == pytest.approx(17.3), "even without any noise"
    assert typical_us([98.0, 102.0], USUAL_SIGMA) == pytest.approx((98.0 * 102.0) ** 0.5)


def test_noise_is_estimated_from_repeats_in_spite_of_outliers(subtests):
    cases = [0.005, 0.02, 0.1]
    for sigma in cases:
        with subtests.test(sigma=sigma):
            draw = random.Random(5)
            repeats = [
                [100 * draw.lognormvariate(0, sigma) * (5 if draw.random() < 0.01 else 1) for _ in range(2)]
                for _ in range(400)
            ]

            assert launch_sigma(repeats) == pytest.approx(sigma, rel=0.3)


def test_without_repeats_the_usual_noise_is_assumed():
    assert launch_sigma([]) == launch_sigma([[10.0]]) == USUAL_SIGMA


def test_a_pair_of_launches_weighs_as_much_as_what_is_usual():
    seen = math.log(1.1) ** 2 / 2 / 0.455

    assert launch_sigma([[10.0, 11.0], [7.0]]) == pytest.approx(math.sqrt((USUAL_SIGMA**2 + seen) / 2))


def test_a_disturbed_pair_is_no_noise_and_stays_recognisable():
    sigma = launch_sigma([[10.0, 50.0]])

    assert sigma == pytest.approx(math.sqrt((USUAL_SIGMA**2 + 0.15**2) / 2))
    assert typical_us([50.0, 10.0], sigma) == pytest.approx(10.0)
