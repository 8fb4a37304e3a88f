"""Which calls belong to a training step."""

from ncclt.profile.readers.kineto.reader import KinetoReader


def _read(trace):
    return KinetoReader().read([trace.write()], name="t")


def test_calls_are_divided_by_the_steps(trace):
    """Four calls in two steps are two per step."""
    for number, start in ((1, 1000), (2, 2000)):
        trace.step(number, start, start + 900)
        for offset in (10, 20):
            trace.comm("allreduce", 256)["ts"] = start + offset
    workload = _read(trace)
    assert workload.messages[0].calls_per_step == 2
    assert (workload.provenance.steps, workload.step_time_us) == (2, 900)
    assert not any("left out" in note or "cut off" in note for note in workload.provenance.notes)


def test_the_step_time_is_that_of_the_median_step(trace):
    """One step that stalls does not count, as in the note on the cost of recording."""
    for number, start, end in ((1, 1000, 1400), (2, 2000, 2420), (3, 3000, 4000)):
        trace.step(number, start, end)
        trace.comm("allreduce", 256)["ts"] = start + 10
    assert _read(trace).step_time_us == 420


def test_without_marks_the_file_is_one_step(trace):
    """And a note says so."""
    trace.comm("allreduce", 256)
    workload = _read(trace)
    assert (workload.provenance.steps, workload.step_time_us) == (0, None)
    assert any("no training step is marked" in note for note in workload.provenance.notes)


def test_stub_at_the_end_is_no_step(trace):
    """`prof.step()` opens one more step before the recording ends."""
    for number, start, end in ((0, 1000, 1900), (1, 2000, 2900), (2, 3000, 3010)):
        trace.step(number, start, end)
        if number < 2:
            trace.comm("allreduce", 256)["ts"] = start + 10
    workload = _read(trace)
    assert (workload.provenance.steps, workload.messages[0].calls_per_step) == (2, 1)
    assert any("1 of 3 marked steps" in note for note in workload.provenance.notes)


def test_step_without_calls_counts_when_it_is_as_long_as_the_others(trace):
    """Gradient accumulation sends in every other step only."""
    for number, start in ((0, 1000), (1, 2000)):
        trace.step(number, start, start + 900)
    trace.comm("allreduce", 256)["ts"] = 1010
    assert _read(trace).messages[0].calls_per_step == 0.5


def test_steps_marked_elsewhere_do_not_hide_the_calls(trace):
    """Marks that hold no call at all are of no use."""
    trace.step(1, 10_000, 10_900)
    trace.comm("allreduce", 256)
    workload = _read(trace)
    assert (workload.provenance.steps, workload.messages[0].calls_per_step) == (0, 1)


def test_ranks_with_different_steps_are_compared_per_step(new_trace):
    """One rank recorded one step, the other two: both send once per step."""
    paths = []
    for rank in (0, 1):
        trace = new_trace().job(rank, 2)
        for number in range(rank + 1):
            start = 1000.0 * (number + 1)
            trace.step(number, start, start + 900)
            trace.comm("allreduce", 256)["ts"] = start + 10
        paths.append(trace.write(f"{rank}.json"))
    workload = KinetoReader().read(paths, name="t")
    assert workload.messages[0].calls_per_step == 1


def test_traces_that_mark_steps_are_not_mixed_with_those_that_do_not(new_trace):
    """Calls of a step and of a whole file are never compared."""
    paths = []
    for rank in (0, 1):
        trace = new_trace().job(rank, 2)
        for number in range(3):
            start = 1000.0 * (number + 1)
            if rank == 0:
                trace.step(number, start, start + 900)
            trace.comm("allreduce", 256)["ts"] = start + 10
        paths.append(trace.write(f"{rank}.json"))
    workload = KinetoReader().read(paths, name="t")
    assert [m.calls_per_step for m in workload.messages] == [1.0]
    assert (workload.provenance.steps, workload.provenance.whole_file) == (3, False)
    assert "1 of 2 traces mark no training step: their calls do not count" in workload.provenance.notes
