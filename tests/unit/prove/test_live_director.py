"""The director of live tuning, on boundaries as rank 0 of a job gets them."""

import json
import random
from pathlib import Path
from typing import NamedTuple

import pytest

from ncclt.prove import live_director
from ncclt.prove.live_director import ARMS_FILE, BLOCKS_FILE, STATE_FILE, LiveDirector, resume_experiment

EVERY = 6
STEP_US = 1e6


class Outcome(NamedTuple):
    committed: bool


class Boundary(NamedTuple):
    step: int
    plan: str
    plan_since: int
    can_propose: bool
    outcome: Outcome | None
    times_us: dict


class Job:
    """Two ranks, the second of which is slower; a plan takes effect with the third step after its boundary."""

    def __init__(self, folder, gains, *, commits=lambda _number: True, step_us=STEP_US):
        self.plans = ["", *(f"plan-{name}" for name in gains)]
        self.gains = dict(zip(self.plans, (0.0, *gains.values()), strict=True))
        arms = [{"name": name, "table": f"plan-{name}"} for name in gains]
        if not (folder / ARMS_FILE).exists():
            told = {"arms": arms, "min_effect": 0.02, "max_cost": 0.005, "min_block_s": 2.0}
            (folder / ARMS_FILE).write_text(json.dumps(told))
        self.director = LiveDirector(folder, backend="gloo", ranks=2, coin=random.Random(1))
        self.step, self.plan, self.since, self.outcome = 0, "", 0, None
        self.proposals, self.commits, self.next = 0, commits, None
        self.step_us, self.news = step_us, []

    def boundary(self, *, can_propose=True):
        times_us = []
        for number in range(1, EVERY + 1):
            if self.next is not None and number == 3:
                self.plan, self.since, self.next = self.next, self.step + 3, None
            times_us.append(self.step_us / (1 + self.gains[self.plan]))
        self.step += EVERY
        slower = [1.001 * time_us for time_us in times_us]
        made = Boundary(self.step, self.plan, self.since, can_propose, self.outcome, {0: times_us, 1: slower})
        self.outcome = None
        plan = self.director.decide(made)
        if self.director.news:
            self.news.append(self.director.news)
        if plan is not None and can_propose:
            self.proposals += 1
            self.outcome = Outcome(self.commits(self.proposals))
            if self.outcome.committed:
                self.next = plan
        return plan

    def run(self, boundaries=80):
        for _ in range(boundaries):
            self.boundary()
            if self.director.finished:
                break
        return self


def read_blocks(folder):
    return resume_experiment(folder, ["fast"])[1]


def test_the_faster_arm_is_found_and_stays(tmp_path):
    job = Job(tmp_path, {"slow": -0.2, "fast": 0.1}).run(24)

    assert job.plan == "plan-fast"
    assert job.news == ["fast leads and stays in force; checking it for rare stalls"]
    assert list(json.loads((tmp_path / STATE_FILE).read_text())["dropped"]) == ["slow"]

    job.run()
    assert job.news[1:] == ["tuned: steps are faster with fast, stalls included; keeping it"]
    assert not job.director.finished


def test_the_default_comes_back_where_no_arm_is_faster(tmp_path):
    job = Job(tmp_path, {"same": 0.0, "slow": -0.1}).run()

    assert job.plan == ""
    assert job.director.finished == "no arm is faster; keeping the NCCL default"


def test_blocks_count_the_slowest_rank_and_no_step_of_a_switch(tmp_path):
    Job(tmp_path, {"fast": 0.1}).run(12)

    blocks = read_blocks(tmp_path)
    assert {block.arm for block in blocks} == {0, 1}
    for block in blocks[1:]:
        expected_us = 1.001 * STEP_US / (1.1 if block.arm else 1.0)
        assert block.step_us == pytest.approx((expected_us,) * 3, rel=1e-6)
        assert block.steps == EVERY


def test_blocks_are_as_long_for_a_fast_arm_as_for_the_default(tmp_path):
    """As long as the block of the default takes two seconds, also where the arm's would need one step more."""
    Job(tmp_path, {"fast": 0.1}, step_us=0.7 * STEP_US).run(20)
    assert {len(block.step_us) for block in read_blocks(tmp_path)[1:]} == {3}

    (folder := tmp_path / "short").mkdir()
    Job(folder, {"fast": 0.1}, step_us=STEP_US / 5).run(20)
    assert all(1.11 * sum(block.step_us) >= 2e6 for block in read_blocks(folder))


def test_a_block_whose_plan_was_aborted_is_void(tmp_path):
    job = Job(tmp_path, {"fast": 0.1}, commits=lambda number: number != 1)
    while job.proposals < 2:
        job.boundary()
    job.run()

    assert job.plan == "plan-fast"
    arms = [block.arm for block in read_blocks(tmp_path)]
    assert sum(arms) < len(arms)


def test_the_draw_of_a_void_block_holds(tmp_path):
    """Else the plan in force, which nothing can abort, would be drawn more often than not."""
    for number in range(2, 6):
        (folder := tmp_path / str(number)).mkdir()
        job = Job(folder, {"fast": 0.1}, commits=lambda proposal, number=number: proposal != number)
        plans = [job.boundary() for _ in range(40)]
        aborted = [at for at, plan in enumerate(plans) if plan is not None][number - 1]
        assert plans[aborted + 1] == plans[aborted]


def test_nothing_is_decided_while_no_plan_can_be_proposed(tmp_path):
    job = Job(tmp_path, {"fast": 0.1})

    assert [job.boundary(can_propose=False) for _ in range(10)] == [None] * 10
    assert read_blocks(tmp_path) == []


def test_a_job_that_is_started_again_continues(tmp_path):
    Job(tmp_path, {"fast": 0.1}).run(8)
    before = read_blocks(tmp_path)
    assert before

    again = Job(tmp_path, {"fast": 0.1}).run()

    assert again.plan == "plan-fast"
    assert read_blocks(tmp_path)[: len(before)] == before
    assert read_blocks(tmp_path)[-1].elapsed_us > before[-1].elapsed_us


def test_a_torn_line_is_skipped_and_the_next_block_begins_a_new_one(tmp_path):
    Job(tmp_path, {"fast": 0.1}).run(8)
    blocks = read_blocks(tmp_path)
    path = tmp_path / BLOCKS_FILE
    path.write_text(path.read_text()[:-20])

    with path.open("ab") as file:
        for line in (b"null", b"[1, 2, 3, 4, 5]", b"[[9, [], false, false, 0], [1], [], 6, 6]", b"\xff", b"[[0]]"):
            file.write(b"\n" + line)

    Job(tmp_path, {"fast": 0.1}).run(20)

    again = read_blocks(tmp_path)
    assert again[: len(blocks) - 1] == blocks[:-1]
    assert len(again) > len(blocks)


def test_a_job_that_is_started_again_after_days_reads_little_and_knows_what_was_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(live_director, "_MOST_BYTES", 2_000)
    job = Job(tmp_path, {"fast": 0.1}).run(200)
    assert job.director.experiment.leading == 1
    assert (tmp_path / BLOCKS_FILE).stat().st_size < 4_000
    job.director.experiment.dropped[1] = "it stalls"
    job.director.end("")

    assert Job(tmp_path, {"fast": 0.1}).director.experiment.dropped == {1: "it stalls"}


def test_state_tells_whether_steps_were_made(tmp_path):
    job = Job(tmp_path, {"fast": 0.1})
    state = json.loads((tmp_path / STATE_FILE).read_text())
    assert (state["step"], state["backend"]) == (0, "gloo")
    job.boundary()
    assert json.loads((tmp_path / STATE_FILE).read_text())["step"] == EVERY


def test_the_reason_for_an_end_inside_the_job_is_kept(tmp_path):
    job = Job(tmp_path, {"fast": 0.1})
    job.director.end("rank 1 captured a CUDA graph")

    assert json.loads((tmp_path / STATE_FILE).read_text())["finished"] == "rank 1 captured a CUDA graph"


def test_the_state_can_be_read_at_every_moment_of_a_write(tmp_path, monkeypatch):
    """Also by whoever looks after each single character."""
    job = Job(tmp_path, {"ring": 0.1})
    moments = []

    def write_slowly(path, text, **_options):
        with path.open("w") as file:
            for character in text:
                file.write(character)
                file.flush()
                moments.append(json.loads((tmp_path / STATE_FILE).read_text())["step"])

    monkeypatch.setattr(Path, "write_text", write_slowly)
    job.boundary()
    job.director.end("over")
    assert {0, EVERY} <= set(moments)
