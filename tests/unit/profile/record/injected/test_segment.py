"""The agreement of ranks on the last step of a segment."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from ncclt.profile.record.injected import segment as module
from ncclt.profile.record.injected.segment import SegmentEnd

distributed = pytest.importorskip("torch.distributed")
STEP_S = [0.01]


def _ends(folder, count):
    return [SegmentEnd(folder, number=signal.SIGUSR1, first=5, steps=3) for _ in range(count)]


def _check(ends, step, store, *, ranks=None):
    """Let ranks reach a check at once; return what each of them reads."""
    with ThreadPoolExecutor(len(ends)) as pool:
        asked = [
            pool.submit(end.agree_over, store, step, str(step + 3), rank=rank, ranks=ranks or len(ends))
            for rank, end in enumerate(ends)
        ]
        said = [one.result() for one in asked]
    for end in ends:
        end._before = step
    return said


def test_one_process_ends_behind_a_check_after_the_request(tmp_path):
    (end,) = _ends(tmp_path, 1)
    assert not any(end.is_due(step, STEP_S) for step in range(1, 9))
    (tmp_path / "stop").touch()
    assert [step for step in range(9, 20) if end.is_due(step, STEP_S)] == [11]
    assert not (tmp_path / "stop").exists(), "ranks that the launcher starts again do not stop a second time"


def test_first_check_ends_nothing(tmp_path):
    (tmp_path / "stop").touch()
    (end,) = _ends(tmp_path, 1)
    assert not end.is_due(5, STEP_S), "whether all ranks get to a check is seen at the next one"


def test_all_ranks_end_behind_the_same_step(tmp_path):
    store, ends = distributed.HashStore(), _ends(tmp_path, 3)
    assert set(_check(ends, 5, store)) == {"8"}
    (tmp_path / "stop").touch()
    assert set(_check(ends, 8, store)) == {"stop"}


def test_a_rank_without_the_hook_means_that_none_ends(tmp_path):
    store, ends = distributed.HashStore(), _ends(tmp_path, 2)
    _check(ends, 5, store, ranks=3)
    (tmp_path / "stop").touch()
    assert set(_check(ends, 8, store, ranks=3)) == {"off"}
    assert (tmp_path / "stop").exists()


def test_ranks_that_wait_for_rank_0_in_vain_decide_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WAIT_S", 0.05)
    store, (first, second) = distributed.HashStore(), _ends(tmp_path, 2)
    assert second.agree_over(store, 5, "8", rank=1, ranks=2) == "off"
    assert first.agree_over(store, 5, "8", rank=0, ranks=2) == "off"


def test_an_unhandled_signal_is_known(tmp_path):
    (end,) = _ends(tmp_path, 1)
    assert not end.is_handled
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        assert end.is_handled
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not SegmentEnd(tmp_path, number=signal.SIGINT, first=1, steps=1).is_handled, "Python's own is no checkpoint"
