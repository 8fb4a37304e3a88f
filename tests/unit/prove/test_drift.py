"""What counts as a change since it was measured."""

import random

import pytest

from ncclt.prove.drift import compare


def draws(seed, *, centre, sigma, count):
    rng = random.Random(seed)
    return [centre * rng.lognormvariate(0, sigma) for _ in range(count)]


def test_a_change_beyond_noise_and_tolerance_is_one():
    change = compare("x", draws(1, centre=100, sigma=0.02, count=8), draws(2, centre=130, sigma=0.02, count=4),
                     tolerance=0.1)  # fmt: skip

    assert change.changed
    assert change.ratio == pytest.approx(1.3, abs=0.05)


def test_the_direction_does_not_matter():
    faster = compare("x", [100, 101, 99, 100], [60, 61, 60, 59], tolerance=0.1)

    assert faster.changed


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
        compare("x", draws(2 * seed, centre=1, sigma=0.1, count=8), draws(2 * seed + 1, centre=1, sigma=0.1, count=4),
                tolerance=0.02).changed
        for seed in range(500)
    )  # fmt: skip

    assert changed <= 10
