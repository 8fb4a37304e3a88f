"""Which parts of a recording are optimizer steps."""

from dataclasses import dataclass
from math import inf

from ncclt.core.message import Collective, Message
from ncclt.profile.steps import STEPS_DIFFER, TimeRange, divide_into_steps

GRADIENTS, METRIC = 4_000_000, 4


@dataclass(frozen=True)
class _Call:
    at: float
    message: Message


def calls(*moments, size=GRADIENTS):
    message = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size, group_size=8)
    return [_Call(at, message) for at in moments]


def marks(*starts, length=100):
    return [TimeRange(start=start, end=start + length, number=number) for number, start in enumerate(starts)]


def runs(*starts, name="Optimizer.step#AdamW.step", length=5):
    return [TimeRange(start=start, end=start + length, name=name) for start in starts]


def divide(made, marked=(), optimizers=()):
    """Return the calls of each step, and the notes."""
    steps, notes = divide_into_steps(made, lambda call: call.at, marked, optimizers)
    return [len(step.calls) for step in steps], tuple(notes)


def test_optimizers_end_steps_where_nothing_marks_them():
    """The first one may have begun before the recording, the last one has not ended."""
    steps, notes = divide_into_steps(calls(10, 110, 210, 310), lambda c: c.at, (), runs(50, 150, 250))
    assert [(step.start, step.end) for step in steps] == [(-inf, 55), (55, 155), (155, 255)]
    assert notes == ["left out: 1 of 4 calls, outside complete steps"]


def test_marks_of_microbatches_are_joined_up_to_their_optimizer():
    assert divide(calls(310, 710), marks(*range(0, 800, 100)), runs(350, 750)) == ([1, 1], ())


def test_step_that_began_before_the_recording_is_left_out():
    """Two of four microbatches."""
    steps, _ = divide_into_steps(calls(110, 510), lambda c: c.at, marks(*range(0, 600, 100)), runs(150, 550))
    assert [step.marks for step in steps] == [(2, 3, 4, 5)]


def test_recording_that_ends_inside_of_an_optimizer_keeps_its_last_step():
    """As the recorder's: `prof.step()` is called by the optimizer's own hook."""
    assert divide(calls(10, 110, 210), marks(0, 100, 200), runs(90, 190)) == ([1, 1, 1], ())


def test_several_steps_in_one_mark_are_several():
    assert divide(calls(10, 60, 110, 160), marks(0, 100), runs(40, 90, 140, 190)) == ([1, 1, 1, 1], ())


def test_several_optimizers_in_one_step_are_one_step():
    """Of a GAN: those of one class are told apart by what is sent before them, others by their name."""
    both = [*calls(10, 110), *calls(60, 160, size=9_000_000)]
    assert divide(both, marks(0, 100), runs(40, 90, 140, 190)) == ([2, 2], ())
    named = [*runs(40, 140), *runs(90, 190, name="Optimizer.step#SGD.step")]
    assert divide(both, (), named)[0] == [2]  # the first one began before the recording


def test_parameter_groups_stepped_in_a_row_are_one_step():
    assert divide(calls(10, 110), (), [*runs(40, 46, 52), *runs(140, 146, 152)]) == ([1, 1], ())


def test_parameter_groups_with_a_call_between_them_are_one_step():
    """As chained optimizers that gather the parameters of each group after its step."""
    groups = [*runs(40, 46, 140, 146, 240, 246, 340, 346)]
    sent = [*calls(10, 110, 210, 310), *calls(45.5, 145.5, 245.5, 345.5, size=9_000_000)]
    assert divide(sent, (), groups)[0] == [2, 2, 2, 2]
    assert divide(sent, marks(0, 100, 200, 300), groups)[0] == [2, 2, 2, 2]


def test_optimizer_slower_than_a_forward_and_backward_pass_ends_a_step_each_time():
    """On the CPU; a slow moment of the machine joined two steps of a recording, and doubled its messages."""
    slow = [*runs(60, length=45), *runs(130, length=40), *runs(250)]
    assert divide(calls(10, 110, 210), marks(0, 100, 200), slow) == ([1, 1, 1], ())
    assert divide(calls(10, 110, 210), (), slow) == ([1, 1, 1], ())


def test_evaluation_is_no_training_step():
    """With marks alone, and between optimizers."""
    made = [*calls(10, 110, 310), *calls(*range(210, 230), size=METRIC)]
    kept, notes = divide(made, marks(0, 100, 200, 300))
    assert kept == [1, 1, 1]
    assert "left out: 1 of 4 steps" in notes[0]
    larger = [*calls(10, 110, 310), *calls(210, 220, size=GRADIENTS // 2)]
    kept, notes = divide(larger, marks(0, 100, 200, 300), runs(50, 150, 350))
    assert kept == [1, 1]
    assert "left out: 1 of 3 steps" in notes[0]


def test_steps_that_differ_are_said_to():
    """Without an optimizer, a step that shares messages with the others may be a microbatch."""
    made = [*calls(10, 110, 210), *calls(220, size=2 * GRADIENTS)]
    assert divide(made, marks(0, 100, 200)) == ([1, 1, 2], (STEPS_DIFFER,))


def test_steps_of_varying_sizes_are_all_kept():
    """Sequences of other lengths; with optimizers they are of one kind, without the note says that they differ."""
    made = [*calls(10, 110), *calls(210, size=GRADIENTS // 2), *calls(310, size=GRADIENTS // 3)]
    assert divide(made, marks(0, 100, 200, 300)) == ([1, 1, 1, 1], (STEPS_DIFFER,))
    assert divide(made, marks(0, 100, 200, 300), runs(50, 150, 250, 350))[0] == [1, 1, 1, 1]


def test_logging_in_some_steps_is_no_other_kind():
    assert divide([*calls(10, 110, 210), *calls(120, size=METRIC)], marks(0, 100, 200)) == ([1, 2, 1], ())


def test_recording_without_a_step_has_none():
    assert divide(calls(10)) == ([], ())
    assert divide(calls(500), marks(0)) == ([], ("no collective is inside the marked steps",))
