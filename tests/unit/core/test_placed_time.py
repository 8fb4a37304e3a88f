"""Times with their place."""

import pytest

from ncclt.core.placed_time import PlacedTime


def test_a_share_of_two_places_is_refused():
    exposed, step = PlacedTime(us=20.0, place="the recording"), PlacedTime(us=80.0, place="the recording")

    assert exposed.share_of(step) == 0.25
    assert step.share_of(exposed) == 1.0
    with pytest.raises(ValueError, match="a time of the recording is no share of a time of the study"):
        exposed.share_of(PlacedTime(us=80.0, place="the study"))
