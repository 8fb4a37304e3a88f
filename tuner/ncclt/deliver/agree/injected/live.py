"""Change the plan of all ranks at the same question of NCCL while a job trains (experimental; not seen on a GPU).

The training does not wait at a boundary: the optimizer's hook copies counters, and a worker thread does the rest over
the job's store. It waits once per switch, in its first question to NCCL after the step at which all ranks arm it.
docs/adr/0026 has the protocol and its proof. Plans come from a director, on rank 0:

    class Director:
        finished: str
        def decide(self, boundary: Boundary) -> str | None: ...
        def end(self, reason: str) -> None: ...

The worker thread calls `decide` once per boundary (every `every` optimizer steps) to which all ranks came. It returns
the plan to propose: a compact table (ncclt.nccl.tuner_plugin.compact_table), "" = the NCCL default, None = the plan
stays; nothing is proposed while `boundary.can_propose` is False. `boundary.outcome` tells once how the last proposal
ended, and `boundary.plan_since` is the first step under `boundary.plan`: a plan begins between two steps. A director
that sets `finished` to a reason ends live tuning, and so does an error of it; its `news` is printed. `end` is called
once: no more proposals, the plan in force stays.

It stands alone like the rest of this package: standard library, Python 3.8, and torch of the process that it runs in.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import json
import os
import queue
import sys
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import NamedTuple

from .hook import COMMON, compare_facts, describe_rank, longest_pause_s, one_line, say, text_of, wait_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

VARIABLE, STEPS_VARIABLE = "NCCLT_LIVE", "NCCLT_LIVE_STEPS"
"""1: plans can change; steps between two boundaries."""

FOLDER_VARIABLE = "NCCLT_LIVE_FOLDER"
"""Path of the director's folder, which rank 0 sees (`ncclt.prove.live_director`)."""

STEPS = 20
"""Between two boundaries; the store of 8 ranks takes 10 to 20 ms for one (bench/live.py), beside the training."""

COMMIT, ABORT = "commit", "abort: "
COMPARED = (*COMMON, ("nonblocking", "TORCH_NCCL_USE_COMM_NONBLOCKING"), ("every", STEPS_VARIABLE))
_HISTORY = 4
"""Boundaries at which the counts of a communicator's ranks must be equal: now and at the last three."""

_MOST_ABORTS = 2
_LATENCIES = 8
"""Last boundaries, the slowest of which sets the notice of a switch: with the last one alone, 23 of 1,023 came
too late for a rank (bench/live.py, 8 ranks on a busy machine)."""
_MARK = 64
"""As NCCLT_LIVE_MARK of plugin/live.h."""

_ROOM = 1 << 16
_CLOSE_S = 2.0


class Limits(NamedTuple):
    """Seconds that ranks wait for each other; each is longer than those that it follows.

    The worker threads wait, and the training does not; only the first question behind an armed switch waits, up to
    `question_s`, for the decision, and then fails. PyTorch's watchdog allows 600 s.
    """

    collect_s: float = 5.0
    acknowledge_s: float = 5.0
    decide_s: float = 15.0
    question_s: float = 30.0


LIMITS = Limits()


class ProposalOutcome(NamedTuple):
    """Outcome of a proposal, `latency_s` after its armed step: committed, or aborted for a reason."""

    proposal: int
    plan: str
    committed: bool
    reason: str
    communicators: int
    latency_s: float = 0.0


class Boundary(NamedTuple):
    """Facts of all ranks at one boundary, for the director.

    Attributes:
        number: from 1.
        step: optimizer steps so far.
        plan: in force for all communicators in step.
        plan_since: first step that ran under it; 0 = from the start.
        can_propose: whether a plan can be proposed now.
        why_not: the reason, if not.
        outcome: of the last proposal, once.
        times_us: per rank, the time between the hooks of each step since the last boundary, µs on the host.
        in_step, left_out: communicators that a proposal concerns, and others.
    """

    number: int
    step: int
    plan: str
    plan_since: int
    can_propose: bool
    why_not: str
    outcome: ProposalOutcome | None
    times_us: Mapping[int, Sequence[float]]
    in_step: int
    left_out: int


def start(distributed: Any, inits: int) -> LiveSession | None:
    """Begin live tuning at the end of `init_process_group`; None where this rank cannot take part."""
    library, hello = describe_rank(os.environ)
    plugin: LivePlugin = NoPlugin()
    if library is not None and not hello["problem"]:
        try:
            plugin = LivePlugin(library)
        except AttributeError:
            hello["problem"] = "the tuner plugin is older than live tuning"
    hello["nonblocking"] = os.environ.get("TORCH_NCCL_USE_COMM_NONBLOCKING", "0")
    hello["runtime_connect"] = os.environ.get("NCCL_RUNTIME_CONNECT", "1")
    if os.environ.get("NCCL_SYM_NOWIN_ENABLE", "0") != "0":
        hello["problem"] = hello["problem"] or "NCCL_SYM_NOWIN_ENABLE lets NCCL ask estimates as questions"
    hello["every"] = os.environ.get(STEPS_VARIABLE) or str(STEPS)
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        rank = distributed.get_rank()
        session = LiveSession(
            distributed._get_default_store(),
            plugin,
            rank,
            distributed.get_world_size(),
            prefix=f"ncclt/live/{restarts}/{inits}",
            epoch=inits,
            every=int(hello["every"]),
            director=find_director() if rank == 0 else None,
            hello=hello,
            connected_only=hello["runtime_connect"] != "0",
        )
        register_optimizer_step_post_hook(optimizer_hook(session))
    except Exception as error:  # noqa: BLE001  # whatever PyTorch lacks here, this rank takes no part, so that none does
        say(f"no live tuning: {one_line(error)}")
        return None
    if not hello["problem"]:
        watch_estimates(distributed, plugin)
        watch_captures(plugin)
    atexit.register(session.close)
    return session


def find_director() -> Any:
    """Return the director of rank 0; None = nothing is proposed."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    from torch.distributed import get_backend, get_world_size

    from .live_director import LiveDirector  # type: ignore[import-untyped]  # of ncclt.prove, copied beside this

    return LiveDirector(Path(folder), backend=str(get_backend()), ranks=get_world_size())


def optimizer_hook(session: LiveSession) -> Callable[..., None]:
    """Return the hook that counts the steps of the first live optimizer."""
    first: Callable[[], Any] = lambda: None  # noqa: E731

    def after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        nonlocal first
        if first() is None:
            first = weakref.ref(optimizer)
        if first() is optimizer:
            session.step()

    # Read by torch.compile, which would otherwise trace into the hook of a compiled step and warn about it.
    vars(after_step)["_torchdynamo_disable"] = True
    return after_step


def watch_estimates(distributed: Any, plugin: LivePlugin) -> None:
    """Mark the questions of `_time_estimator` for the plugin: a single rank asks them, and they launch nothing.

    With blocking communicators NCCL asks them in the thread that ends the estimate (ncclGroupSimulateEnd).
    """
    original = getattr(distributed, "_time_estimator", None)
    if original is None:
        return
    one_at_a_time = threading.RLock()

    @functools.wraps(original)
    @contextlib.contextmanager
    def _time_estimator(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with one_at_a_time:
            plugin.estimate(1)
            try:
                with original(*args, **kwargs) as estimator:
                    yield estimator
            finally:
                plugin.estimate(0)

    distributed._time_estimator = sys.modules["torch.distributed"]._time_estimator = _time_estimator  # type: ignore[attr-defined]


def watch_captures(plugin: LivePlugin) -> None:
    """Mark questions inside a CUDA graph capture for the plugin: replays ask none."""
    from torch.cuda.graphs import CUDAGraph

    begin, end = CUDAGraph.capture_begin, CUDAGraph.capture_end

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = begin(self, *args, **kwargs)
        plugin.capture(1)
        return result

    @functools.wraps(end)
    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        plugin.capture(0)
        return end(self, *args, **kwargs)

    CUDAGraph.capture_begin, CUDAGraph.capture_end = capture_begin, capture_end  # type: ignore[method-assign]


class LivePlugin:
    """The functions of plugin/live.h in the plugin that NCCL has loaded."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Find them.

        Raises:
            AttributeError: the plugin is older than they are.
        """
        self._describe, self._arm = library.ncclt_live_describe, library.ncclt_live_arm
        self._decide, self.estimate = library.ncclt_live_decide, library.ncclt_live_estimate
        self.capture = library.ncclt_live_capture
        number, text = ctypes.c_uint64, ctypes.c_char_p
        self._arm.argtypes = [number, number, text, ctypes.c_int, ctypes.c_double, ctypes.c_void_p, text]
        self._decide.argtypes = [ctypes.c_uint64, ctypes.c_int]
        self._text = ctypes.create_string_buffer(_ROOM)
        self._size = ctypes.c_size_t(_ROOM)

    def describe(self) -> bytes:
        """Return one line per open communicator; empty if there are too many."""
        length = self._describe(self._text, self._size)
        return b"" if length < 0 else self._text.raw[:length]

    def arm(self, proposal: int, number: int, plan: str, *, connected_only: bool, wait_s: float) -> tuple[int, ...]:
        """Arm a switch in one communicator.

        Returns:
            The question with which it begins, the hash of all before, and the checksum of the plan's rows.

        Raises:
            RuntimeError: it is not armed.
        """
        armed, reason = (ctypes.c_uint64 * 3)(), ctypes.create_string_buffer(200)
        if self._arm(proposal, number, plan.encode(), connected_only, wait_s, armed, reason):
            raise RuntimeError(reason.value.decode("ascii", "replace"))
        return tuple(armed)

    def decide(self, proposal: int, *, commit: bool) -> None:
        """Commit or abort a proposal."""
        self._decide(proposal, commit)


class NoPlugin(LivePlugin):
    """Null plugin of a rank without one; its `hello` message prevents arming."""

    def __init__(self) -> None:
        """Do without a library."""

    def describe(self) -> bytes:
        """Return no communicator."""
        return b""


def read_communicators(description: bytes) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the communicators of a description by their id, and the problems of the others.

    Leaves out communicators with two ranks in this process: the store has one rank per process.
    """
    communicators: dict[str, dict[str, Any]] = {}
    doubled, problems = set(), []
    for line in description.decode("ascii", "replace").splitlines():
        line, _, problem = line.partition(" problem=")
        words = dict(word.split("=", 1) for word in line.split())
        number = words.pop("id")
        if int(words["ranks"]) < 2:  # NCCL asks nothing
            continue
        if problem:
            problems.append(problem)
            continue
        if number in communicators:
            doubled.add(number)
        texts = {"mark", "hash", "state"}
        communicators[number] = {name: word if name in texts else int(word) for name, word in words.items()}
    return {number: facts for number, facts in communicators.items() if number not in doubled}, problems


def members_of(facts: Mapping[int, Mapping[str, Any]]) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Return each communicator's facts by rank."""
    members: dict[str, dict[int, Mapping[str, Any]]] = {}
    for rank, rank_facts in facts.items():
        for number, communicator in rank_facts["communicators"].items():
            members.setdefault(number, {})[rank] = communicator
    return members


def find_end(facts: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the reason to end live tuning, such as a captured graph or different ranks; empty = none."""
    steps = {rank_facts["step"] for rank_facts in facts.values()}
    if len(steps) > 1:
        return f"ranks count steps differently ({min(steps)} to {max(steps)})"
    for number, members in members_of(facts).items():
        for rank, communicator in members.items():
            if communicator["captured"]:
                return f"rank {rank} captured a CUDA graph with collectives, which keeps its plan"
            if communicator["state"] == "failed":
                return f"rank {rank} failed a question, because it did not learn a decision in time"
        # Ranks at the same question compare all questions; others, those up to the last mark, if they share it.
        for name, stride in (("hash", 1), ("mark", _MARK)):
            first: dict[int, tuple[int, Any]] = {}
            for rank, communicator in members.items():
                if communicator["busy"]:
                    continue
                first_rank, value = first.setdefault(communicator["count"] // stride, (rank, communicator[name]))
                if value != communicator[name]:
                    return f"ranks {first_rank} and {rank} were asked different questions in communicator {number}"
    return ""


def find_in_step(history: Sequence[Mapping[int, Mapping[str, Any]]], begun: Mapping[str, int]) -> set[str]:
    """Return the communicators whose ranks had equal counts at every boundary.

    They must be in use, with no registered buffers: registration is local to a rank, and NCCL 2.29.7 and 2.30.7 ask
    more questions where only one side has it.

    Args:
        history: facts of the last boundaries, the newest last.
        begun: question with which the last plan of a communicator began; all ranks must have passed it.
    """
    if len(history) < _HISTORY:
        return set()
    in_step = set()
    for number, now in members_of(history[-1]).items():
        counts = []
        for facts in history:
            members = members_of(facts).get(number, {})
            numbers = {communicator["count"] for communicator in members.values()}
            if len(members) != next(iter(now.values()))["ranks"] or len(numbers) != 1:
                break
            counts.append(numbers.pop())
        is_quiet = not any(communicator["busy"] or communicator["registered"] for communicator in now.values())
        if is_quiet and len(counts) == len(history) and counts[-1] > max(counts[-2], begun.get(number, 0)):
            in_step.add(number)
    return in_step


class LiveSession:
    """Live tuning of one job in one rank: boundaries, proposals, and the worker thread.

    Args:
        store: of the job; only clones of it are used.
        plugin: of this process.
        rank, ranks: of the job.
        prefix: of all keys; another one for every start of the ranks.
        epoch: another one for every session of this process, whose plugin keeps its communicators.
        every: steps between two boundaries, equal on all ranks.
        limits: equal on all ranks.
        director: of rank 0; None = nothing is proposed.
        hello: facts that must be equal on all ranks before the first proposal, with `problem` and `host`.
        connected_only: only algorithms that a communicator has used are proposed for it.

    Attributes:
        ended: why no plan changes any more; empty = one still can.
    """

    def __init__(
        self,
        store: Any,
        plugin: LivePlugin,
        rank: int,
        ranks: int,
        *,
        prefix: str,
        epoch: int = 1,
        every: int = STEPS,
        limits: Limits = LIMITS,
        director: Any = None,
        hello: Mapping[str, str],
        connected_only: bool = True,
    ) -> None:
        """Connect to the store twice, and start the worker.

        Raises:
            Exception: the store cannot be cloned, in whatever class PyTorch raises it.
        """
        self.ended = ""
        self._stores = [store.clone(), store.clone()]
        """The second one reads a decision if the first one fails."""
        self._plugin, self._rank, self._ranks = plugin, rank, ranks
        self._prefix, self._every, self._limits, self._director = prefix, every, limits, director
        self._hello, self._connected_only = dict(hello), connected_only
        self._pid, self._is_closing = os.getpid(), threading.Event()
        self._steps, self._last_s, self._times_us = 0, 0.0, []  # type: ignore[var-annotated]
        self._scheduled: dict[str, Any] | None = None
        """The proposal that the hook arms at its step."""
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._coordinator = Coordinator(ranks, every, epoch) if rank == 0 else None
        self._worker = threading.Thread(target=self._work, name="ncclt-live", daemon=True)
        self._worker.start()

    def step(self) -> None:
        """Count an optimizer step; arm a proposal at its step; hand a snapshot to the worker at a boundary."""
        now_s = time.perf_counter()
        if self.ended or os.getpid() != self._pid:  # a forked child has no worker
            return
        if self._steps:
            self._times_us.append(1e6 * (now_s - self._last_s))
        self._last_s = now_s
        self._steps += 1
        scheduled = self._scheduled
        if scheduled is not None and self._steps >= scheduled["step"]:
            self._scheduled = None
            self._tasks.put((self._take_part, scheduled, self._arm(scheduled), now_s))
        if self._steps % self._every == 0:
            times_us, self._times_us = self._times_us, []
            self._tasks.put((self._serve, self._steps, self._plugin.describe(), times_us, now_s))

    def close(self) -> None:
        """End the worker and keep the current plan."""
        self._is_closing.set()
        self._tasks.put(None)
        if os.getpid() == self._pid:
            self._worker.join(_CLOSE_S)

    def _arm(self, message: Mapping[str, Any]) -> dict[str, tuple[int, ...]] | str:
        """Arm a proposal in all its communicators; return the armed ones, or the reason of a refusal."""
        if self._steps > message["step"]:
            return f"step {message['step']} was over before the proposal came"
        try:
            return {
                number: self._plugin.arm(
                    message["proposal"],
                    int(number, 16),
                    message["plan"],
                    connected_only=self._connected_only,
                    wait_s=self._limits.question_s,
                )
                for number in message["communicators"]
            }
        except Exception as error:  # noqa: BLE001  # of the plugin; the training goes on, whatever fails here
            return one_line(error)

    def _work(self) -> None:
        failures = 0
        while not self._is_closing.is_set():
            task = self._tasks.get()
            if task is None:
                return
            function, *arguments = task
            if self.ended and function == self._serve:
                continue  # what is armed is decided all the same
            try:
                function(*arguments)
                failures = 0
            except Exception as error:  # noqa: BLE001  # the training goes on, whatever fails here
                failures += 1
                if self._coordinator is not None:
                    self._coordinator.history.clear()
                if failures == _MOST_ABORTS:
                    self._end(f"rank {self._rank} failed twice in a row: {one_line(error)}")

    def _end(self, reason: str) -> None:
        if self.ended or self._is_closing.is_set():
            return
        self.ended = reason
        if self._rank == 0:
            say(f"live tuning ended: {reason}")
        if self._director is not None:
            director, self._director = self._director, None
            with contextlib.suppress(Exception):
                director.end(reason)
        scheduled, self._scheduled = self._scheduled, None
        if scheduled is not None:  # the others may have armed it
            self._learn(scheduled["proposal"], f"{ABORT}rank {self._rank}: {reason}")

    def _key(self, *words: object) -> str:
        return "/".join(map(str, (self._prefix, *words)))

    def _wait(self, keys: Sequence[str], limit_s: float) -> bool:
        return wait_for(self._stores[0], keys, limit_s, self._ranks, self._is_closing.is_set)

    def _serve(self, step: int, description: bytes, times_us: Sequence[float], taken_s: float) -> None:
        """Publish this rank's facts of a boundary, and follow rank 0's message."""
        store, number = self._stores[0], step // self._every
        communicators, problems = read_communicators(description)
        if number == 1:
            if not communicators and not problems:
                problems = ["no communicator of NCCL has loaded the plugin"]
            hello = {**self._hello, "problem": self._hello["problem"] or "; ".join(problems)}
            store.set(self._key("hello", self._rank), json.dumps(hello))
        own = {"step": step, "times_us": [round(time_us, 1) for time_us in times_us], "communicators": communicators}
        store.set(self._key("facts", number, self._rank), json.dumps(own, separators=(",", ":")))
        if self._coordinator is not None:
            message = self._coordinate(number, taken_s)
            store.set(self._key("plan", number), json.dumps(message))
        elif self._wait([self._key("plan", number)], 1.25 * self._limits.collect_s + self._limits.question_s):
            message = json.loads(text_of(store.get(self._key("plan", number))))
        else:
            self._end("rank 0 does not answer")
            return
        if number > 1:
            store.delete_key(self._key("facts", number - 1, self._rank))
        if "proposal" in message:
            own_numbers = [number for number in message["communicators"] if number in communicators]
            if self._scheduled is None:  # the hook refuses it where it comes too late
                self._scheduled = {**message, "communicators": own_numbers}
            else:
                self._take_part(message, "another proposal is under way", time.perf_counter())
        if message.get("end"):
            self._end(message["end"])

    def _coordinate(self, number: int, taken_s: float) -> dict[str, Any]:
        """Collect the facts of all ranks, and return rank 0's message to them."""
        coordinator = self._coordinator
        assert coordinator is not None
        if not coordinator.is_compared:
            hellos = self._collect("hello")
            if reason := compare_facts(hellos, self._ranks, self._limits.collect_s, COMPARED):
                return {"end": reason}
            coordinator.is_compared = True
        facts = self._collect("facts", number)
        missing = [rank for rank in range(self._ranks) if rank not in facts]
        if not missing and number > 1:  # who has written facts has read the plan before
            self._stores[0].delete_key(self._key("plan", number - 1))
        boundary = coordinator.take(number, facts, missing)
        if coordinator.end:
            return {"end": coordinator.end}
        plan = None
        if self._director is not None and not missing:
            try:
                plan = self._director.decide(boundary)
                if self._director.news:
                    say(f"live tuning: {self._director.news}")
            except Exception as error:  # noqa: BLE001  # of the director: the plan in force is safe
                return {"end": f"the director failed: {one_line(error)}"}
            if self._director.finished:
                return {"end": self._director.finished}
        if plan is None or not boundary.can_propose:
            return {}
        coordinator.latencies_s.append(time.perf_counter() - taken_s)
        return coordinator.propose(plan, self._steps)

    def _collect(self, *words: object) -> dict[int, dict[str, Any]]:
        store, keys = self._stores[0], [self._key(*words, rank) for rank in range(self._ranks)]
        if self._wait(keys, self._limits.collect_s):
            values = store.multi_get(keys) if hasattr(store, "multi_get") else map(store.get, keys)
            return {rank: json.loads(text_of(value)) for rank, value in enumerate(values)}
        return {rank: json.loads(text_of(store.get(key))) for rank, key in enumerate(keys) if store.check([key])}

    def _take_part(self, message: Mapping[str, Any], armed: Mapping[str, Sequence[int]] | str, began_s: float) -> None:
        """Acknowledge a proposal that the hook armed, and give the plugin the decision of all ranks."""
        proposal, word = message["proposal"], ""
        try:
            if isinstance(armed, str):
                raise RuntimeError(armed)
            self._stores[0].set(self._key("ack", proposal, self._rank), json.dumps(armed))
            if self._coordinator is not None:
                word = self._judge(proposal, self._coordinator)
        except Exception as error:  # noqa: BLE001  # of plugin or store: nobody commits what a rank did not acknowledge
            word = f"{ABORT}rank {self._rank}: {one_line(error)}"
        decision = self._learn(proposal, word)
        if decision is not None:
            self._plugin.decide(proposal, commit=decision == COMMIT)
        if self._coordinator is not None:
            latency_s = time.perf_counter() - began_s
            self._coordinator.conclude(message, decision or f"{ABORT}it is not known", latency_s)

    def _judge(self, proposal: int, coordinator: Coordinator) -> str:
        """Return rank 0's decision about a proposal."""
        keys = [self._key("ack", proposal, rank) for rank in range(self._ranks)]
        decision = self._key("decision", proposal)
        ends_s = time.monotonic() + self._limits.acknowledge_s
        while not self._wait(keys, 0.05):
            if self._stores[0].check([decision]):
                return f"{ABORT}a rank refused it"  # the register holds its reason
            if time.monotonic() > ends_s or self._is_closing.is_set():
                return f"{ABORT}not all ranks acknowledged within {self._limits.acknowledge_s:g} s"
        reason = coordinator.compare([json.loads(text_of(self._stores[0].get(key))) for key in keys])
        for rank in range(self._ranks):
            self._stores[0].delete_key(self._key("ack", proposal - 1, rank))
        return f"{ABORT}{reason}" if reason else COMMIT

    def _learn(self, proposal: int, word: str) -> str | None:
        """Return the content of a proposal's write-once register; None if it cannot be read.

        Args:
            proposal: its number.
            word: of this rank, written if the register is empty; empty = wait for another rank's.
        """
        key, began_s = self._key("decision", proposal), time.monotonic()
        which, why = 0, ""
        while True:
            waited_s = time.monotonic() - began_s
            if not word and (waited_s > self._limits.decide_s or self._is_closing.is_set()):
                word = f"{ABORT}rank {self._rank} waited {self._limits.decide_s:g} s for the decision"
            store = self._stores[which % 2]
            try:
                if word:
                    return text_of(store.compare_set(key, "", word))
                if wait_for(store, [key], 0.5, self._ranks, self._is_closing.is_set):
                    return text_of(store.get(key))
            except Exception as error:  # noqa: BLE001  # of the store; the other connection may live
                which, why = which + 1, one_line(error)
                time.sleep(0.01)
            if waited_s > self._limits.question_s or (self._is_closing.is_set() and which > 1):
                self._end(f"rank {self._rank} lost the job's store before it knew a decision: {why}")
                say(f"rank {self._rank} lost the job's store; its next collectives fail, as they may differ: {why}")
                return None


class Coordinator:
    """Rank 0's knowledge of all ranks: history, the last switch, and proposals.

    Attributes:
        history: facts of the last boundaries.
        is_compared: whether the ranks have been found to be equal.
        end: why no plan may change any more; empty = one may.
        latencies_s: from the last boundaries to a proposal.
    """

    def __init__(self, ranks: int, every: int, epoch: int) -> None:
        self.history: deque[Mapping[int, Mapping[str, Any]]] = deque(maxlen=_HISTORY)
        self.is_compared, self.end = False, ""
        self.latencies_s = deque([0.0], maxlen=_LATENCIES)
        self._ranks, self._every, self._aborts, self._missed = ranks, every, 0, 0
        self._proposals = epoch << 32
        self._plan, self._since = "", 0
        self._planned: set[str] = set()
        self._begun: dict[str, int] = {}
        self._begins: dict[str, int] = {}
        self._is_pending = False
        self._outcome: ProposalOutcome | None = None

    def take(self, number: int, facts: Mapping[int, Mapping[str, Any]], missing: Sequence[int]) -> Boundary:
        """Process the facts of a boundary; set `end` if it is the last."""
        step, outcome = number * self._every, self._outcome
        why_not = ""
        if missing:
            self.history.clear()
            self._missed += 1
            why_not = f"rank {missing[0]} did not answer"
            if self._missed >= _MOST_ABORTS and not self.end:
                self.end = f"{why_not}, twice in a row"
        else:
            self._missed = 0
            self.history.append(facts)
            self.end = self.end or find_end(facts)
        self._planned = find_in_step(self.history, self._begun)
        members = members_of(facts)
        if self._is_pending and not why_not:
            why_not = "a proposal is under way"
        if not why_not and not self._planned:
            why_not = "no communicator is in step"
        self._outcome = None
        used = [number for number, ranks in members.items() if any(facts["count"] for facts in ranks.values())]
        return Boundary(
            number=number,
            step=step,
            plan=self._plan,
            plan_since=self._since,
            can_propose=not why_not and not self.end,
            why_not=self.end or why_not,
            outcome=outcome,
            times_us={rank: rank_facts["times_us"] for rank, rank_facts in facts.items()},
            in_step=len(self._planned),
            left_out=len(used) - len(self._planned),
        )

    def propose(self, plan: str, steps: int) -> dict[str, Any]:
        """Return the message that proposes a plan.

        Its step is behind those that the ranks may pass before they have read it, and one more.

        Args:
            plan: to propose.
            steps: of this rank so far.
        """
        times_us = sorted(time_us for rank_facts in self.history[-1].values() for time_us in rank_facts["times_us"])
        step_s = max(times_us[len(times_us) // 2] / 1e6, 1e-6) if times_us else 1.0
        notice_s = max(2 * max(self.latencies_s), 3 * longest_pause_s(self._ranks))
        ahead = (2 + int(notice_s / step_s)) << self._aborts
        self._proposals += 1
        self._is_pending = True
        return {
            "proposal": self._proposals,
            "plan": plan,
            "step": steps + ahead,
            "communicators": sorted(self._planned),
        }

    def compare(self, armed: Sequence[Mapping[str, Sequence[int]]]) -> str:
        """Return the first difference between the ranks' armed plans; empty = none."""
        first: dict[str, Sequence[int]] = {}
        for rank_armed in armed:
            for number, values in rank_armed.items():
                *place, checksum = first.setdefault(number, values)
                if place != values[:2]:
                    return f"ranks were at different questions of communicator {number}"
                if checksum != values[2]:
                    return f"ranks were offered different choices in communicator {number}"
        self._begins = {number: values[0] for number, values in first.items()}
        return ""

    def conclude(self, message: Mapping[str, Any], decision: str, latency_s: float) -> None:
        """Process the decision about a proposal."""
        committed = decision == COMMIT
        reason = "" if committed else decision[len(ABORT) :]
        self._outcome = ProposalOutcome(
            message["proposal"], message["plan"], committed, reason, len(message["communicators"]), latency_s
        )
        self._is_pending = False
        if committed:
            self._aborts = 0
            self._begun.update(self._begins)
            self._plan, self._since = message["plan"], message["step"] + 1
        else:
            self._aborts += 1
            if self._aborts >= _MOST_ABORTS and not self.end:
                self.end = f"two proposals in a row were aborted: {reason}"
