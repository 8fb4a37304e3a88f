"""Injected faults."""

import pytest

from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Outcome
from ncclt.errors import UsageError
from ncclt.measure.simulated.noise import DETAIL, NO_FAULTS, Faults


def test_by_default_nothing_fails():
    assert NO_FAULTS.outcome(DEFAULT, seed=1, repeat=0) is Outcome.OK


def test_a_rate_is_kept_and_seeded():
    faults = Faults(crash=0.3)
    outcomes = [faults.outcome(DEFAULT, seed=seed, repeat=0) for seed in range(400)]
    assert 0.22 < outcomes.count(Outcome.CRASHED) / 400 < 0.38
    assert outcomes == [faults.outcome(DEFAULT, seed=seed, repeat=0) for seed in range(400)]


def test_a_predicate_always_strikes_and_only_where_it_should():
    faults = Faults(wrong_if=lambda s: s.channels == 4)
    assert faults.outcome(Setting(channels=4), seed=1, repeat=9) is Outcome.WRONG_RESULT
    assert faults.outcome(Setting(channels=5), seed=1, repeat=9) is Outcome.OK


@pytest.mark.parametrize("rate", [-0.1, 1.1])
def test_a_rate_is_a_probability(rate):
    with pytest.raises(UsageError, match="0 to 1"):
        Faults(hang=rate)


def test_every_fault_has_words():
    assert set(DETAIL) == {Outcome.CRASHED, Outcome.TIMEOUT, Outcome.WRONG_RESULT}
    assert all(DETAIL.values())
