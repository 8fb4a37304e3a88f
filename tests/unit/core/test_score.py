"""From measurements to one number."""

import math

import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.score import LOSS_SLOPE, score_us, worth
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.core.workload import MessageCalls, Provenance, Workload

OFTEN, SELDOM = (
    Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size, group_size=8) for size in (1024, 2048)
)
WORKLOAD = Workload(
    name="w",
    messages=(MessageCalls(message=OFTEN, calls_per_step=3.0), MessageCalls(message=SELDOM, calls_per_step=0.5)),
    provenance=Provenance(source="test"),
)


def result(often_us, seldom_us):
    times = {OFTEN: often_us, SELDOM: seldom_us}
    measured = tuple(Measurement(message=m, samples_us=(us,)) for m, us in times.items())
    return TrialResult(outcome=Outcome.OK, measurements=measured)


def test_the_score_is_the_time_per_step():
    assert score_us(result(10.0, 100.0), WORKLOAD) == pytest.approx(3 * 10.0 + 0.5 * 100.0)


def test_what_the_workload_does_not_send_costs_it_nothing():
    only = Workload(name="w", messages=WORKLOAD.messages[:1], provenance=WORKLOAD.provenance)
    assert score_us(result(10.0, 100.0), only) == pytest.approx(3 * 10.0)


def test_a_gain_weighs_as_the_default_spends_its_time_and_a_loss_a_tenth_of_it(subtests):
    """Of 100 us per step, 60 are for the frequent message."""
    for times_us, expected in [
        ((20.0, 80.0), 0.0),
        ((10.0, 80.0), 0.6 * math.log(0.5)),
        ((20.0, 40.0), 0.4 * math.log(0.5)),
        ((10.0, 160.0), (0.6 - 0.4 * LOSS_SLOPE) * math.log(0.5)),
    ]:
        with subtests.test(times_us=times_us, expected=expected):
            assert worth(result(*times_us), result(20.0, 80.0), WORKLOAD) == pytest.approx(expected)
