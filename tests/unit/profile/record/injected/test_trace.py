"""Which steps are recorded, and what the profiler is told to do in them."""

from hypothesis import given
from hypothesis import strategies as st

from ncclt.profile.record.injected.recorder import Window


def test_profiler_saves_in_the_last_step():
    for warmup, steps, actions in [
        (1, 1, ["RECORD_AND_SAVE", "NONE"]),
        (1, 3, ["RECORD", "RECORD", "RECORD_AND_SAVE", "NONE"]),
        (2, 1, ["WARMUP", "RECORD_AND_SAVE", "NONE"]),
        (9, 2, ["WARMUP", "RECORD", "RECORD_AND_SAVE", "NONE"]),
    ]:
        window = Window(warmup=warmup, steps=steps)
        assert [window.action(position) for position in range(len(actions))] == actions


@given(st.integers(1, 50), st.integers(1, 50))
def test_times_are_of_the_right_steps(warmup, steps):
    window = Window(warmup=warmup, steps=steps)
    inside = {step for step in range(200) if window.is_inside(step)}
    outside = {step for step in range(200) if window.is_outside(step)}
    assert inside == set(range(warmup + 1, warmup + steps + 1))
    assert not inside & outside
    # Neither settling steps, nor the one in which the profiler is prepared, nor the one behind the window.
    assert not outside & {1, 2, 3, window.begin + 1, window.last + 1}
    assert len([step for step in outside if step > window.last]) == steps
    assert max(outside) == window.end
