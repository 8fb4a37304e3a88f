"""Any trial comes back from the store as it went in."""

import json
import sqlite3
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import DTYPE_SIZES, Collective, Message
from ncclt.core.setting import Setting
from ncclt.core.study import Arm, Phase, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.errors import StoreError
from ncclt.testing.samples import sample_study, sample_trial

MESSAGES = st.builds(
    Message,
    collective=st.sampled_from(Collective),
    dtype=st.sampled_from(sorted(DTYPE_SIZES)),
    size_bytes=st.integers(1, 2**50),
    group_size=st.integers(0, 2**20),
    spans_nodes=st.booleans(),
)
MEASUREMENTS = st.builds(
    Measurement,
    message=MESSAGES,
    samples_us=st.lists(st.floats(allow_nan=False), min_size=1, max_size=4).map(tuple),
    wrong=st.none() | st.integers(0, 2**60),
    interpolated=st.booleans(),
    measured_bytes=st.none() | st.integers(1, 2**50),
    bits=st.sampled_from(("", "0123456789abcdef")),
)
SETTINGS = st.builds(
    Setting,
    algorithm=st.none() | st.sampled_from(Algorithm),
    protocol=st.none() | st.sampled_from(Protocol),
    channels=st.none() | st.integers(1, 64),
    parameters=st.dictionaries(st.text(max_size=9), st.integers(), max_size=3).map(lambda d: tuple(d.items())),
)
TRIALS = st.builds(
    Trial,
    number=st.integers(0, 2**30),
    phase=st.sampled_from(Phase),
    setting=SETTINGS,
    repeat=st.integers(0, 1000),
    result=st.builds(
        TrialResult,
        outcome=st.sampled_from(Outcome),
        measurements=st.lists(MEASUREMENTS, max_size=3).map(tuple),
        detail=st.text(st.characters()),
        wall_s=st.floats(0, allow_nan=False),
        persistent=st.booleans(),
        by_plugin=st.booleans(),
    ),
    score_us=st.none() | st.floats(min_value=0, exclude_min=True, allow_nan=False),
    arm=st.none() | st.sampled_from(Arm),
    block=st.integers(0, 1000),
    started=st.text(st.characters(codec="utf-8")),
)


@settings(
    deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(trial=TRIALS)
def test_any_trial_comes_back(store, trial):
    # repr, because -0.0 == 0.0 and what is promised is equality to the bit.
    count = len(store.studies.page(limit=500).items)
    id = f"study{count}"
    store.studies.open(sample_study(id, id=id))
    store.trials.add(id, trial)
    assert repr(store.trials.find(id)) == repr((trial,))


def test_a_sample_that_is_no_number_is_kept(store):
    """A benchmark that printed nan has said something; it is not the store that loses it."""
    measurement = Measurement(message=sample_trial(0).result.measurements[0].message, samples_us=(float("nan"), 1.0))
    result = TrialResult(outcome=Outcome.INVALID, measurements=(measurement,))
    store.studies.open(sample_study())
    store.trials.add(
        "abc123", Trial(number=0, phase=Phase.SEARCH, setting=Setting(), repeat=0, result=result, score_us=None)
    )
    assert repr(store.trials.find("abc123")[0].result) == repr(result)


def test_new_are_the_trials_before_between_and_behind_the_known_ones(store):
    store.studies.open(sample_study())
    kept = [store.trials.add("abc123", sample_trial(number)) for number in range(5)]
    for known in ({}, {0}, {1}, {1, 3}, {4}, {0, 1, 4}, set(range(5))):
        assert store.trials.find("abc123", without=known) == tuple(trial for trial in kept if trial.number not in known)


def test_a_document_that_was_changed_by_hand_is_named(store, subtests):
    """Whatever is wrong with it: no JSON, no object, a field that is missing, or one of another type or range."""
    store.studies.open(sample_study())
    store.trials.add("abc123", sample_trial(0))
    with closing(sqlite3.connect(store.path)) as connection:
        (whole,) = connection.execute("SELECT document FROM trials").fetchone()
    for text in ["", "[]", "{}", '{"setting": 1}', '{"setting": {"channels": 0}}']:
        with subtests.test(text=text):
            with closing(sqlite3.connect(store.path)) as connection, connection:
                changed = json.dumps(json.loads(whole) | json.loads(text)) if "setting" in text else text
                connection.execute("UPDATE trials SET document = ?", (changed,))
            for read in (store.trials.find, store.trials.outline):
                with pytest.raises(
                    StoreError, match=r"^trial 0 of study abc123 in the store cannot be read: "
                ) as raised:
                    read("abc123")
                assert "restore a backup" in raised.value.hint


def test_pages_of_trials_are_by_number_and_go_on_behind_one(store):
    store.studies.open(sample_study())
    kept = tuple(store.trials.add("abc123", sample_trial(number)) for number in (0, 1, 2, 5))
    assert store.trials.page("abc123", limit=3) == kept[:3]
    assert store.trials.page("abc123", after=2, limit=3) == kept[3:]
    assert store.trials.page("abc123", after=5, limit=3) == store.trials.page("unknown", limit=3) == ()
