"""Segments of a training that `ncclt autotune --restarts` compares."""

import signal
from dataclasses import replace

import pytest

from ncclt.core.recommendation import Decision
from ncclt.core.segment import CONTROL, Segment
from ncclt.pipeline.candidates import propose_candidates
from ncclt.pipeline.restarts import RestartRequest, SegmentedTraining, TrainingArm
from ncclt.prove.comparison import Comparison
from ncclt.store import open_store
from ncclt.testing.samples import sample_cluster

MODEL = "nasnetmobile"


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path / 'store.db'}") as opened:
        yield opened


@pytest.fixture
def train(store, tmp_path):
    """Return a maker of trainings with one candidate, each with the segments that are stored by then."""

    def make(*, today=(), cluster=None):
        request = RestartRequest(
            argv=("python", "train.py"),
            model=MODEL,
            cluster=cluster or sample_cluster(),
            today=today,
            how=Comparison(steps=5, warmup=2, directory=tmp_path),
            number=signal.SIGTERM,
            max_cost=1.0,
            hours=0.0,
        )
        (candidate,) = propose_candidates(store.workloads.get(MODEL), sample_cluster(), most=1, by_plugin=True)
        training = SegmentedTraining(
            request, store, environ={}, find_arms=lambda *_: (), say=lambda line: None, now=lambda: "2026-01-01"
        )
        training._arms = {candidate.id: TrainingArm(name=candidate.id, candidate=candidate)}
        return training

    return make


def measure(store, training, blocks, *, factor=0.9):
    """Store segments of the candidate and the control, as the training would."""
    for block in range(blocks):
        for arm in (CONTROL, *training._arms):
            store.records.add_segment(
                Segment(
                    id=f"{training._place()[:6]}{len(training._request.today)}{arm[:4]}{block}",
                    model=MODEL,
                    cluster="pair",
                    arm=arm,
                    recommendation="",
                    label="",
                    variables=(),
                    base_env=training._request.today,
                    order=0,
                    block=block,
                    step_us=(1e6 * (1 if arm == CONTROL else factor) + block,),
                    failure="",
                    wall_s=1.0,
                    restart_s=0.0,
                    slower_s=0.0,
                    is_stopped=True,
                    created="2026-01-01",
                    place=training._place(),
                )
            )


def test_times_under_another_nccl_are_not_compared(store, train):
    measure(store, train(), 1)
    assert {one.arm for one in train()._race().segments} == {CONTROL, *train()._arms}
    upgraded = train(cluster=replace(sample_cluster(), nccl_version="2.29.1"))
    assert upgraded._race().segments == ()


def test_a_win_after_the_own_settings_were_unset_is_published(store, train):
    own = train(today=(("NCCL_PROTO", "LL"),))
    measure(store, own, 12)
    train(today=(("NCCL_PROTO", "LL"),))._report(ended=True)
    assert store.recommendations.find(model=MODEL) == ()
    measure(store, train(), 12)
    train()._report(ended=True)
    (won,) = store.recommendations.find(model=MODEL)
    assert won.table.verdict.decision is Decision.TUNED
