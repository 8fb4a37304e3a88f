"""The document of an end-to-end proof."""

import numpy as np
import pytest
from full_records import fill_record
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.verification import Side, StepLaunch, Verification, percentile

TIMES = st.lists(st.floats(0, 1e9), max_size=5).map(tuple)


def _verification(*launches):
    return fill_record(Verification, launches=launches)


def test_percentiles_are_over_all_steps_of_a_side():
    base = [StepLaunch(side=Side.BASE, order=i, step_us=(1.0 + 2 * i, 2.0 + 2 * i)) for i in (0, 1)]
    verification = _verification(*base, StepLaunch(side=Side.TUNED, order=2, failure="exit code 1"))
    assert verification.percentiles(Side.BASE) == pytest.approx({50: 2.5, 75: 3.25, 90: 3.7, 95: 3.85})
    assert verification.percentiles(Side.TUNED) == {}
    assert verification.to_document()["percentiles_us"]["base"]["p50"] == 2.5


def test_time_of_a_launch_is_its_mean_step_where_a_pause_counts_as_ten():
    assert StepLaunch(side=Side.BASE, order=0, step_us=(9.0, 1.0, 2.0)).time_us == 4.0
    assert StepLaunch(side=Side.BASE, order=0, step_us=(500.0, 1.0, 1.0)).time_us == 4.0
    assert StepLaunch(side=Side.BASE, order=0).time_us is None


@given(st.lists(st.floats(0, 1e9), min_size=1), st.floats(0, 100))
def test_percentile_is_numpys(values, percent):
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))
