"""Boundaries and proposals of live tuning over a store in memory; the plugin is a fake with the same states."""

import contextlib
import threading
import time
from types import MappingProxyType, SimpleNamespace

import pytest
from memory_store import Store

from ncclt.deliver.agree.injected.live import (
    COMPARED,
    Coordinator,
    Limits,
    LiveSession,
    find_end,
    find_in_step,
    optimizer_hook,
    read_communicators,
    watch_captures,
    watch_estimates,
)

LIMITS = Limits(collect_s=0.4, acknowledge_s=0.4, decide_s=1.0, question_s=1.5)
HELLO = {**dict.fromkeys([name for name, _ in COMPARED], ""), "problem": "", "host": "h"}
EVERY, PER_STEP = 4, 5
PLAN = "1:x"


class Plugin:
    """The plugin of one rank, with one communicator; counts by `ask`."""

    def __init__(self, ranks, refuses=lambda _proposal: False, checksum=1, hash=0):
        self.ranks, self.refuses, self.checksum, self.hash = ranks, refuses, checksum, hash
        self.count, self.begins, self.state, self.proposal, self.decided = 0, 0, "committed", 0, {}
        self.armed = {}

    def ask(self, questions=PER_STEP):
        self.count += questions

    def describe(self):
        flags = "mark=0 hash=0 captured=0 registered=0 busy=0"
        words = f"nodes=1 count={self.count} {flags} begins={self.begins} state={self.state}"
        return f"id={7:016x} ranks={self.ranks} {words}\n".encode()

    def arm(self, proposal, number, plan, *, connected_only, wait_s):
        assert (number, plan) == (7, PLAN)
        if self.refuses(proposal & 0xFFFF):
            raise RuntimeError("made up")
        self.proposal, self.begins, self.state = proposal, self.count, "undecided"
        self.armed[proposal & 0xFFFF] = self.count
        return self.count, self.hash, self.checksum

    def decide(self, proposal, *, commit):
        self.decided[proposal & 0xFFFF] = commit
        if proposal == self.proposal and self.state == "undecided":
            self.state = "committed" if commit else "aborted"


class Director:
    """Proposes one plan whenever it can."""

    news = finished = ""

    def __init__(self):
        self.boundaries, self.ends = [], []

    def decide(self, boundary):
        self.boundaries.append(boundary)
        return PLAN

    def end(self, reason):
        self.ends.append(reason)

    @property
    def outcomes(self):
        return [(one.outcome.committed, one.outcome.reason) for one in self.boundaries if one.outcome is not None]


class Job:
    """Three ranks that step together."""

    def __init__(self, plugins=(), stores=(), hellos=MappingProxyType({}), director=None, ranks=3):
        store = Store()
        self.store = store
        self.plugins = [plugins[rank] if rank in plugins else Plugin(ranks) for rank in range(ranks)]
        self.director = director or Director()
        self.sessions = [
            LiveSession(
                stores[rank](store) if rank in stores else store,
                self.plugins[rank],
                rank,
                ranks,
                prefix="p",
                every=EVERY,
                limits=LIMITS,
                director=self.director if rank == 0 else None,
                hello={**HELLO, **hellos.get(rank, {})},
            )
            for rank in range(ranks)
        ]

    def step(self, steps=EVERY, absent=()):
        for _ in range(steps):
            time.sleep(0.003)  # a switch begins behind the steps that its acknowledgements take
            for rank, (plugin, session) in enumerate(zip(self.plugins, self.sessions, strict=True)):
                plugin.ask()
                if rank not in absent:
                    session.step()

    def pass_boundaries(self, number, absent=()):
        """Step to so many boundaries, and let the workers finish each."""
        for _ in range(number):
            seen = len(self.director.boundaries)
            self.step(absent=absent)
            self.wait(lambda seen=seen: len(self.director.boundaries) > seen or self.sessions[0].ended)
        self.wait(lambda: all(plugin.state != "undecided" for plugin in self.plugins), limit_s=3.0)

    def step_until_armed(self):
        while not all(plugin.armed for plugin in self.plugins) and not self.sessions[0].ended:
            self.step(1)

    def pass_proposals(self, number):
        """Step until so many proposals are decided on all ranks, and to the boundary behind."""
        for _ in range(40):
            if all(len(plugin.decided) >= number for plugin in self.plugins) or self.sessions[0].ended:
                break
            self.pass_boundaries(1)
        self.pass_boundaries(1)

    def reasons(self):
        return [reason for _, reason in self.director.outcomes]

    @staticmethod
    def wait(condition, limit_s=1.0):
        ends_s = time.monotonic() + limit_s
        while not condition() and time.monotonic() < ends_s:
            time.sleep(0.005)

    def close(self):
        for session in self.sessions:
            session.close()


@pytest.fixture
def start():
    jobs = []

    def start_job(**options):
        jobs.append(Job(**options))
        return jobs[-1]

    yield start_job
    for job in jobs:
        job.close()


def test_plan_is_committed_on_all_ranks_for_the_same_question(start):
    job = start()
    job.pass_proposals(1)
    assert [plugin.decided[1] for plugin in job.plugins] == [True] * 3
    assert len({plugin.armed[1] for plugin in job.plugins}) == 1
    assert job.plugins[0].armed[1] > 4 * EVERY * PER_STEP
    first = job.director.boundaries[:4]
    assert [one.can_propose for one in first] == [False, False, False, True], "counts were equal four times"
    assert set(first[-1].times_us) == {0, 1, 2}
    assert len(first[-1].times_us[2]) == EVERY


def test_boundary_names_the_plan_and_its_first_step(start):
    job = start()
    job.pass_proposals(1)
    begins = job.plugins[0].armed[1]
    settled = next(one for one in job.director.boundaries if one.plan)
    assert (settled.plan, settled.plan_since) == (PLAN, begins // PER_STEP + 1)
    assert settled.outcome.committed


def test_next_plan_waits_until_the_last_is_decided(start):
    job = start()
    judge, gate = job.sessions[0]._judge, threading.Event()
    job.sessions[0]._judge = lambda *words: gate.wait(5) and judge(*words)
    job.pass_boundaries(4)
    job.step_until_armed()
    assert [plugin.state for plugin in job.plugins] == ["undecided"] * 3
    gate.set()
    job.pass_boundaries(2)
    assert job.director.boundaries[4].outcome is None or job.director.boundaries[4].outcome.committed
    assert all(plugin.decided[1] for plugin in job.plugins)


def test_proposal_that_comes_after_its_step_is_refused(start):
    job = start()
    propose = job.sessions[0]._coordinator.propose
    job.sessions[0]._coordinator.propose = lambda plan, steps: propose(plan, steps) | {"step": steps}
    job.pass_proposals(2)
    assert [plugin.decided for plugin in job.plugins] == [{1: False, 2: False}] * 3
    assert job.reasons()[0].endswith(" was over before the proposal came")


def test_ranks_at_different_questions_abort(start):
    """One rank alone asked once more since the boundary."""
    for changes in ({"hash": 5}, {}):
        job = start(plugins={1: Plugin(3, **changes)})
        job.pass_boundaries(4)
        if not changes:
            job.plugins[1].ask(1)
        job.pass_proposals(1)
        assert job.reasons()[0] == "ranks were at different questions of communicator 0000000000000007"
        assert all(plugin.decided[1] is False for plugin in job.plugins)


def test_one_refusal_aborts_on_all_ranks_and_two_in_a_row_end_it(start, capfd):
    job = start(plugins={2: Plugin(3, refuses=lambda _proposal: True)})
    job.pass_proposals(2)
    job.wait(lambda: job.director.ends)
    assert [plugin.decided for plugin in job.plugins] == [{1: False, 2: False}] * 3
    assert job.director.ends == ["two proposals in a row were aborted: rank 2: made up"]
    assert capfd.readouterr().err == f"ncclt: live tuning ended: {job.director.ends[0]}\n"
    job.wait(lambda: all(session.ended for session in job.sessions))
    assert {session.ended for session in job.sessions} == set(job.director.ends)


def test_refusals_that_are_not_in_a_row_end_nothing(start):
    job = start(plugins={1: Plugin(3, refuses=lambda proposal: proposal % 2)})
    while len(job.director.outcomes) < 4 and len(job.director.boundaries) < 60:
        job.pass_boundaries(1)
    assert [committed for committed, _ in job.director.outcomes[:4]] == [False, True, False, True]
    assert job.director.ends == []


def test_ranks_that_compiled_different_rows_abort(start):
    job = start(plugins={1: Plugin(3, checksum=2)})
    job.pass_proposals(1)
    assert job.director.outcomes[0] == (False, "ranks were offered different choices in communicator 0000000000000007")
    assert all(plugin.decided[1] is False for plugin in job.plugins)


def failing_store(*, clones, after):
    """Return a store of which these clones fail for good, once the rank has acknowledged."""

    def build(store):
        seen = []

        class Failing(Store):
            def clone(self, _fails_at=None):
                number = len(seen)
                seen.append(number)
                return Store.clone(self, self.watch if number in clones else None)

            @staticmethod
            def watch(operation):
                return any("/ack/" in key for key in store.values if key.endswith("/1")) and after in operation

        return Failing(None, store.values, store.lock)

    return build


def test_second_connection_reads_the_decision_where_the_first_one_fails(start):
    job = start(stores={1: failing_store(clones={0}, after="decision")})
    job.pass_proposals(1)
    assert [plugin.decided[1] for plugin in job.plugins] == [True] * 3


def test_rank_that_lost_the_store_after_it_acknowledged_decides_nothing(start, capfd):
    """Only its plugin may fail then: the others may have committed."""
    job = start(stores={1: failing_store(clones={0, 1}, after="decision")})
    job.pass_boundaries(4)
    job.step_until_armed()
    job.wait(lambda: job.sessions[1].ended, limit_s=5.0)
    assert [plugin.decided for plugin in job.plugins] == [{1: True}, {}, {1: True}]
    assert job.plugins[1].state == "undecided"
    assert "rank 1 lost the job's store; its next collectives fail" in capfd.readouterr().err


def test_rank_that_waits_in_vain_aborts_for_all(start):
    """Rank 0 dies between the proposal and its word."""
    job = start()
    job.sessions[0]._judge = lambda *_words: time.sleep(2.0) or "commit"
    job.pass_boundaries(4)
    job.step_until_armed()
    job.wait(lambda: all(1 in plugin.decided for plugin in job.plugins), limit_s=5.0)
    assert [plugin.decided for plugin in job.plugins] == [{1: False}] * 3


@pytest.mark.parametrize(
    ("hello", "why"),
    [({"problem": "no plugin"}, "rank 1 on h: no plugin"), ({"nccl": "2.29.7"}, "rank 1 on h has NCCL 2.29.7")],
)
def test_rank_that_lacks_something_is_named_and_nothing_is_proposed(start, capfd, hello, why):
    job = start(hellos={1: hello})
    job.step()
    job.wait(lambda: all(session.ended for session in job.sessions))
    assert {session.ended[: len(why)] for session in job.sessions} == {why}
    assert len(capfd.readouterr().err.splitlines()) == 1
    assert job.director.boundaries == []


def test_rank_without_the_hook_ends_it(start):
    job = start()
    job.step(absent=(2,))
    job.wait(lambda: job.director.ends)
    assert job.director.ends == ["rank 2 did not answer within 0.4 s"]


def test_rank_that_stops_answering_ends_it_at_the_second_boundary(start):
    job = start()
    job.pass_boundaries(5)
    for _ in range(2):
        job.step(absent=(1,))
    job.wait(lambda: job.director.ends, limit_s=3.0)
    assert job.director.ends == ["rank 1 did not answer, twice in a row"]
    assert all(plugin.state != "undecided" for plugin in job.plugins)


def test_director_that_fails_ends_it(start):
    job = start(director=SimpleNamespace(boundaries=[], decide=lambda _boundary: 1 / 0, end=lambda _reason: None))
    job.step()
    job.wait(lambda: all(session.ended for session in job.sessions))
    assert {session.ended for session in job.sessions} == {"the director failed: division by zero"}


def test_finished_director_ends_it(start, capfd):
    job = start()
    job.pass_boundaries(2)
    job.director.finished = "tree is faster"
    job.pass_boundaries(1)

    assert job.sessions[0].ended == "tree is faster"
    assert "live tuning ended: tree is faster" in capfd.readouterr().err


def test_store_does_not_grow_with_boundaries(start):
    job = start()
    job.director.decide = lambda boundary: job.director.boundaries.append(boundary)
    job.pass_boundaries(3)
    before = len(job.store.values)
    job.pass_boundaries(10)
    assert len(job.store.values) < before + 10, "a boundary has a key per rank, and one more"


def test_forked_child_and_closed_session_do_nothing(start):
    job = start()
    job.sessions[0]._pid += 1
    job.step()
    assert job.sessions[0]._tasks.empty()
    job.close()
    job.wait(lambda: not any(session._worker.is_alive() for session in job.sessions))
    assert not any(session._worker.is_alive() for session in job.sessions)


def facts(*ranks, step=4, **changes):
    """Return facts of ranks that have one communicator of all of them, with these counts."""
    told = {
        "ranks": len(ranks),
        "mark": "0",
        "hash": "0",
        "captured": 0,
        "registered": 0,
        "busy": 0,
        "begins": 0,
        "state": "committed",
    }
    return {
        rank: {
            "step": step,
            "times_us": [],
            "communicators": {"a": {**told, "count": count, **changes.get(str(rank), {})}},
        }
        for rank, count in enumerate(ranks)
    }


def change(found, rank, **changes):
    found[rank]["communicators"]["a"].update(changes)
    return found


def test_end_is_found():
    assert find_end(facts(10, 10)) == ""
    assert find_end(facts(10, 20)) == ""
    uneven = facts(10, 10)
    uneven[1]["step"] = 5
    assert "count steps differently (4 to 5)" in find_end(uneven)
    assert "rank 1 captured a CUDA graph" in find_end(change(facts(10, 10), 1, captured=1))
    assert "rank 0 failed a question" in find_end(change(facts(10, 10), 0, state="failed"))
    assert "ranks 0 and 1 were asked different questions" in find_end(change(facts(10, 10), 1, hash="1"))
    assert "ranks 0 and 1 were asked different questions" in find_end(change(facts(70, 80), 1, mark="1", hash="1"))
    assert find_end(change(facts(60, 70), 1, mark="1", hash="1")) == "", "at different marks"
    assert find_end(change(facts(10, 10), 1, hash="1", busy=1)) == "", "still in a question"


def test_communicators_in_step_are_found():
    history = [facts(count, count) for count in (0, 20, 40, 60)]
    assert find_in_step(history, {}) == {"a"}
    assert find_in_step(history[1:], {}) == set(), "three boundaries"
    assert find_in_step([facts(0, 1), *history[1:]], {}) == set(), "ranks differed before"
    assert find_in_step([*history[:3], facts(40, 40)], {}) == set(), "idle"
    assert find_in_step(history, {"a": 60}) == set(), "its last plan begins with the next question"
    assert find_in_step(history, {"a": 59}) == {"a"}
    for name in ("busy", "registered"):
        assert find_in_step([*history[:3], change(facts(60, 60), 1, **{name: 1})], {}) == set(), name
    alone = facts(60, 60)
    del alone[1]["communicators"]["a"]
    assert find_in_step([*history[:3], alone], {}) == set(), "one rank does not have it"


def test_switch_is_announced_so_far_ahead_that_all_ranks_read_of_it():
    coordinator = Coordinator(2, EVERY, 1)
    coordinator.history.append({rank: {"times_us": [10_000.0] * 4} for rank in range(2)})
    assert coordinator.propose(PLAN, 100)["step"] == 108, "three polls of 20 ms, and two steps"
    coordinator.latencies_s.extend([0.3, 0.01])
    assert coordinator.propose(PLAN, 100)["step"] == 162, "twice the slowest of the last boundaries"
    coordinator.conclude(coordinator.propose(PLAN, 100), "abort: too late", 0.0)
    assert coordinator.propose(PLAN, 100)["step"] == 224, "twice as far after an abort"


def test_description_is_read():
    line = (
        b"id=000000000000000a ranks=2 nodes=1 count=3 mark=0f hash=10 captured=0 registered=0 busy=1 begins=9 "
        b"state=aborted\n"
    )
    found, problems = read_communicators(
        line + b"id=000000000000000b ranks=2 problem=a problem=b\n" + b"id=0c ranks=1 problem=c\n"
    )
    assert found == {
        "000000000000000a": {
            "ranks": 2,
            "nodes": 1,
            "count": 3,
            "mark": "0f",
            "hash": "10",
            "captured": 0,
            "registered": 0,
            "busy": 1,
            "begins": 9,
            "state": "aborted",
        }
    }
    assert problems == ["a problem=b"]
    assert read_communicators(2 * line) == ({}, [])


def test_steps_of_the_first_optimizer_count():
    counted = []
    hook = optimizer_hook(SimpleNamespace(step=lambda: counted.append(1)))

    class Optimizer:
        pass

    first, second = Optimizer(), Optimizer()
    for one in (first, second, first, second):
        hook(one, (), {})
    assert len(counted) == 2
    del first
    one = None
    hook(second, (), {})
    assert len(counted) == 3, "the first one is gone"


def test_step_without_a_boundary_takes_no_lock(start):
    """The worker may hold the store for seconds."""
    job = start()
    with job.store.lock:
        job.step(steps=EVERY)
    assert job.sessions[0]._steps == EVERY


class Flags:
    """The two flags of a plugin, as they were set."""

    def __init__(self):
        self.events = []

    def estimate(self, on):
        self.events.append(("estimate", on))

    def capture(self, on):
        self.events.append(("capture", on))


def test_plugin_knows_the_estimates_of_one_rank(monkeypatch):
    torch_distributed = pytest.importorskip("torch.distributed", reason="needs PyTorch")
    flags = Flags()

    @contextlib.contextmanager
    def estimator(group):
        flags.events.append(group)
        yield "estimator"
        flags.events.append("asked")

    distributed = SimpleNamespace(_time_estimator=estimator)
    monkeypatch.setattr(torch_distributed, "_time_estimator", estimator)
    watch_estimates(distributed, flags)
    with torch_distributed._time_estimator(group="g") as given:
        assert given == "estimator"
    assert flags.events == [("estimate", 1), "g", "asked", ("estimate", 0)], "NCCL asks when the estimate ends"
    with pytest.raises(ZeroDivisionError), distributed._time_estimator(group="g"):
        raise ZeroDivisionError
    assert flags.events[-1] == ("estimate", 0)


def test_plugin_knows_when_a_graph_is_captured(monkeypatch):
    graphs = pytest.importorskip("torch.cuda.graphs", reason="needs PyTorch")
    flags = Flags()

    class Graph:
        def capture_begin(self, *args):
            flags.events.append(("begin", args))

        def capture_end(self):
            flags.events.append("end")

    monkeypatch.setattr(graphs, "CUDAGraph", Graph)
    watch_captures(flags)
    graph = Graph()
    graph.capture_begin(1)
    graph.capture_end()
    assert flags.events == [("begin", (1,)), ("capture", 1), ("capture", 0), "end"]
