"""The ranks as a place where settings are measured: a child process, a watch over it, and a cluster's description."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from messages import covers
from nccl import find_library
from ranks import SETTABLE, Timing
from recipes import FAKE_HOSTS, RECIPES, Recipe

from ncclt.core.algo_proto_text import COLLECTIVE_WORDS
from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.policy import Policy
from ncclt.core.setting import Setting
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.errors import NccltError
from ncclt.nccl.tuner_plugin import find
from ncclt.nccl.tuner_plugin.build import build

_GRACE_S = 30.0
"""Beyond a command's own limit: the child ends itself in time, unless it cannot."""

_OPEN_S = 300.0
"""Every copy of NCCL loads all its kernels, and sandboxes are slow at it."""

_LOOPBACK_GBPS = 4.0
"""What sockets over loopback carry, roughly; only describes the cluster, nothing is computed from it."""

_MEMORY_GBPS = 1000.0

UNSET = "\0"
"""In `Place.environ`: leave the variable out. No variable can have this value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What the ranks are and where their files go.

    Attributes:
        recipe: how they share the GPU.
        ranks: how many.
        nccl: libnccl.so.2.
        plugin: our tuner plugin; None = none is loaded.
        output: folder that stays: logs of every child.
        cuda: the CUDA driver, None = the machine's.
        limit_s: for one trial at most, once NCCL is open.
        most_channels: of one rank, None = as many as fit.
        timing: how often a message is sent.
        logged: NCCL's log at INFO, with its choices; slows small messages, so nothing is timed with it.
        environ: more variables for the child; they go before the recipe's.
        room_bytes: largest message.
    """

    recipe: Recipe
    ranks: int
    nccl: Path
    plugin: Path | None
    output: Path
    cuda: Path | None = None
    limit_s: float = 60.0
    most_channels: int | None = None
    timing: Timing = field(default_factory=Timing)
    logged: bool = False
    environ: Mapping[str, str] | None = None
    room_bytes: int = 1 << 27


class LiveRanks:
    """A runner (ncclt.core.trial.Runner) over one child that lives on from trial to trial, unlike the contract's.

    After a trial that failed, the child is ended and the next trial starts a new one. Use it in a `with` block.

    Attributes:
        facts: of GPU and NCCL, once the ranks are open.
        issue_us: of the last trial: how long one call of a message kept the host, µs.
        folder: where the present child's output goes.
    """

    def __init__(self, place: Place) -> None:
        """Describe the ranks; nothing is started before the first trial."""
        self.place = place
        self.facts: dict[str, Any] = {}
        self.issue_us: dict[Message, float] = {}
        self.folder = place.output
        self._child: subprocess.Popen[bytes] | None = None
        self._answers = -1
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._number = 0
        self._known: set[tuple[tuple[str, int], ...]] = {()}

    @property
    def name(self) -> str:
        """Return the word used with `--launcher`."""
        return "one-gpu"

    @property
    def simulated(self) -> bool:
        """Tell that the times are measured."""
        return False

    @property
    def cluster(self) -> Cluster:
        """Return what is measured; its name says that these are no real nodes.

        Raises:
            NccltError: the ranks do not open.
        """
        if not self.facts:
            self.start()
        recipe, ranks = self.place.recipe, self.place.ranks
        nodes = ranks if recipe.network else 1
        return Cluster(
            name=f"one-gpu-{recipe.name}-{ranks}",
            nodes=nodes,
            gpus_per_node=ranks // nodes,
            gpu=f"{self.facts['gpu'].replace(' ', '-')}-shared",
            compute_capability=self.facts["compute_capability"],
            link_class="shm" if recipe.network else "pcie",
            link_gbps=_LOOPBACK_GBPS if recipe.network else _MEMORY_GBPS,
            fabric="ethernet" if recipe.network else "none",
            nics_per_node=1 if recipe.network else 0,
            nic_gbps=_LOOPBACK_GBPS if recipe.network else 0.0,
            nccl_version=self.facts["nccl_version"],
            description=f"{ranks} {recipe.told}: no cluster, a place to try ncclt",
            sources=("bench/gpu",),
        )

    def covers(self, message: Message) -> bool:
        """Tell whether the ranks can send a message."""
        return covers(message, self.place.ranks) and message.size_bytes <= self.place.room_bytes

    def measure(self, setting: Setting, messages: Sequence[Message], *, repeat: int) -> TrialResult:  # noqa: ARG002
        """Measure messages under a setting (see ncclt.core.trial.Runner)."""
        started = time.monotonic()
        unknown = [name for name, _value in setting.parameters if name not in SETTABLE]
        if unknown:
            return TrialResult(outcome=Outcome.INVALID, detail=f"{unknown[0]} cannot be changed by these ranks")
        if (setting.algorithm is None) != (setting.protocol is None) or (setting.channels and not setting.algorithm):
            detail = f"{setting.label}: a table can force algorithm and protocol together, and channels with them"
            return TrialResult(outcome=Outcome.INVALID, detail=detail)
        return self._measured(setting, messages, started=started)

    def applies(self, policy: Policy) -> bool:
        """Tell whether one table delivers the whole policy, with parameters that can be changed."""
        named = all(rule.algorithm and rule.protocol for rule in policy.rules)
        return named and all(name in SETTABLE for name, _value in policy.parameters)

    def measure_policy(self, policy: Policy, messages: Sequence[Message], *, repeat: int) -> TrialResult:  # noqa: ARG002
        """Measure messages under a whole policy, by its table (see ncclt.core.trial.PolicyRunner)."""
        rows = [
            {
                "collective": COLLECTIVE_WORDS[rule.collective],
                "algorithm": rule.algorithm.value,
                "protocol": rule.protocol.value,
                "first_bytes": rule.min_bytes,
                "last_bytes": rule.max_bytes,
                "channels": rule.channels or 0,
            }
            for rule in policy.rules
            if rule.algorithm and rule.protocol
        ]
        return self._measured(Setting(parameters=policy.parameters), messages, started=time.monotonic(), rows=rows)

    def _measured(self, setting: Setting, messages: Sequence[Message], *, started: float, **more: Any) -> TrialResult:
        try:
            self.start()
        except NccltError as error:
            return TrialResult(outcome=Outcome.CRASHED, detail=error.message, wall_s=time.monotonic() - started)
        if setting.parameters not in self._known:
            # New parameters open new communicators, and copies of the library with them.
            answer = self.ask("use", _OPEN_S, parameters=setting.parameters)
            if answer["outcome"] != Outcome.OK:
                return TrialResult(
                    outcome=Outcome(answer["outcome"]), detail=answer["detail"], wall_s=time.monotonic() - started
                )
            self._known.add(setting.parameters)
        timing, wanted = asdict(self.place.timing), [_row(m) for m in messages]
        answer = self.ask(
            "measure", self.place.limit_s, setting=setting.to_document(), messages=wanted, timing=timing, **more
        )
        rows = answer.get("measurements", ())
        self.issue_us = {m: row["issue_us"] for m, row in zip(messages, rows, strict=False)}
        measurements = tuple(
            Measurement(message=message, samples_us=tuple(row["samples_us"]), wrong=row["wrong"])
            for message, row in zip(messages, rows, strict=False)
        )
        return TrialResult(
            outcome=Outcome(answer["outcome"]),
            measurements=measurements,
            detail=answer.get("detail", ""),
            wall_s=time.monotonic() - started,
        )

    def start(self) -> None:
        """Open the ranks, unless they are open.

        Raises:
            NccltError: they do not open; what NCCL said is in the output folder.
        """
        if self._child is not None:
            return
        self._number += 1
        self.folder = self.place.output / f"child-{self._number}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._scratch = tempfile.TemporaryDirectory(prefix="ncclt-ranks-")
        reading, writing = os.pipe()
        options = {
            "recipe": self.place.recipe.name,
            "ranks": self.place.ranks,
            "nccl": str(self.place.nccl.absolute()),
            "cuda": None if self.place.cuda is None else str(self.place.cuda.absolute()),
            "scratch": self._scratch.name,
            "room_bytes": self.place.room_bytes,
            "answers": writing,
        }
        worker = Path(__file__).with_name("worker.py")
        try:
            with (self.folder / "output.txt").open("wb") as output:
                self._child = subprocess.Popen(
                    [sys.executable, str(worker), json.dumps(options)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=(writing,),
                    env=self._environ(),
                    start_new_session=True,
                )
        finally:
            os.close(writing)
        self._answers = reading
        answer = self.ask("open", _OPEN_S)
        if answer["outcome"] != Outcome.OK:
            raise NccltError(f"the ranks do not open: {answer['detail']}", hint=f"see {self.folder}")
        self.facts, self._known = answer, {()}

    def ask(self, do: str, limit_s: float, **more: Any) -> dict[str, Any]:
        """Give the child a command and return its answer; one that fails, hangs or dies is ended."""
        child = self._child
        assert child is not None
        assert child.stdin is not None
        deadline = time.monotonic() + limit_s + _GRACE_S
        try:
            child.stdin.write(json.dumps({"do": do, "limit_s": limit_s, **more}).encode() + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            return self._lost(Outcome.CRASHED)
        text = b""
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return self._lost(Outcome.TIMEOUT)
            piece = os.read(self._answers, 1 << 16)
            if not piece:
                return self._lost(Outcome.CRASHED)
            text += piece
        answer: dict[str, Any] = json.loads(text)
        if answer["outcome"] in (Outcome.TIMEOUT, Outcome.CRASHED) or do == "close":
            self._end()
        return answer

    def close(self) -> None:
        """Close the communicators in order, so that reports are written; then the child is gone."""
        if self._child is not None:
            self.ask("close", self.place.limit_s)

    def __enter__(self) -> Self:
        """Return the ranks."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """End the child: in order, or at once after an error."""
        if error is None:
            self.close()
        self._end(now=True)

    def _environ(self) -> dict[str, str]:
        place = self.place
        assert self._scratch is not None
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "NCCLT_"))}
        nothing = Path(self._scratch.name) / "nccl.conf"
        nothing.touch()
        environ = {
            **inherited,
            **place.recipe.variables(place.ranks, most_channels=place.most_channels),
            # Present from the start, if empty: see ranks.SETTABLE.
            **{f"NCCL_{name}": "" for name in SETTABLE},
            "NCCL_CONF_FILE": str(nothing),
            "NCCL_DEBUG": "INFO" if place.logged else "WARN",
            "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING",
            "NCCL_DEBUG_FILE": str(Path(self._scratch.name) / "nccl.log"),
            "NCCL_TUNER_PLUGIN": "none" if place.plugin is None else str(place.plugin.absolute()),
        }
        if place.plugin is not None:
            environ["NCCLT_POLICY_SHM"] = "of the child"  # which makes it and then names it
        environ.update(place.environ or {})
        return {name: value for name, value in environ.items() if value != UNSET}

    def _lost(self, outcome: Outcome) -> dict[str, Any]:
        """End a child that gave no answer, and say what it left."""
        code = self._end(now=outcome is Outcome.TIMEOUT)
        how = "did not answer in time and was killed" if outcome is Outcome.TIMEOUT else f"ended with {code}"
        return {"outcome": outcome, "detail": f"the process of the ranks {how}{self._last_words()}"}

    def _last_words(self) -> str:
        text = (self.folder / "output.txt").read_text(errors="replace")
        for log in sorted(self.folder.glob("nccl-*.log")):
            text += "".join(line for line in log.read_text(errors="replace").splitlines(True) if "WARN" in line)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f": {' | '.join(lines[-3:])}" if lines else ""

    def _end(self, *, now: bool = False) -> int | None:
        """Wait for the child or end it, keep its logs, and forget it; return its exit code."""
        child, self._child = self._child, None
        if child is None:
            return None
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended before it read the last command
            child.stdin.close()
        try:
            code: int | None = child.wait(0.1 if now else _GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            code = child.wait(_GRACE_S)
        os.close(self._answers)
        if self._scratch is not None:
            for log in sorted(Path(self._scratch.name).glob("nccl-*.log")):
                shutil.copyfile(log, self.folder / log.name)
            self._scratch.cleanup()
        return code

    @property
    def log_of_rank_0(self) -> Path:
        """Return where NCCL writes its choices while the child lives."""
        assert self._scratch is not None
        return Path(self._scratch.name) / "nccl-0-0.log"


def _row(message: Message) -> dict[str, Any]:
    return {
        "collective": message.collective.value,
        "dtype": message.dtype,
        "size_bytes": message.size_bytes,
        "group_size": message.group_size,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what every script asks: where NCCL is, how many ranks, and how they share the GPU."""
    parser.add_argument("--output", type=Path, required=True, help="folder for logs and results; made if missing")
    parser.add_argument("--ranks", type=int, default=2, help="ranks on the one GPU (default 2)")
    parser.add_argument("--recipe", choices=sorted(RECIPES), default=FAKE_HOSTS.name)
    parser.add_argument("--nccl", type=Path, help="libnccl.so.2 (default: the one of the wheel nvidia-nccl-cu*)")
    parser.add_argument(
        "--plugin", type=Path, help="libnccl-tuner-ncclt.so (default: as `ncclt admin plugin path`, else built)"
    )
    parser.add_argument("--cuda", type=Path, help="the CUDA driver (default libcuda.so.1)")
    parser.add_argument("--max-channels", type=int, help="of one rank (default: as many as fit on the GPU at once)")
    parser.add_argument("--samples", type=int, default=5, help="times taken of a message in one trial (default 5)")
    parser.add_argument("--sample-ms", type=float, default=20.0, help="how long one of them lasts (default 20)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one trial (default 60)")


def place_of(options: argparse.Namespace, *, room_bytes: int) -> Place:
    """Return the place that the options of `add_options` mean; builds the plugin where there is none.

    Raises:
        MissingDependencyError: there is no NCCL, or no plugin and no compiler.
    """
    options.output.mkdir(parents=True, exist_ok=True)
    plugin = options.plugin or find() or build(options.output / "libnccl-tuner-ncclt.so")
    return Place(
        recipe=RECIPES[options.recipe],
        ranks=options.ranks,
        nccl=find_library(options.nccl),
        plugin=plugin,
        output=options.output,
        cuda=options.cuda,
        limit_s=options.limit,
        most_channels=options.max_channels,
        timing=Timing(samples=options.samples, sample_us=1e3 * options.sample_ms),
        room_bytes=room_bytes,
    )


def without_plugin(place: Place) -> Place:
    """Return the same ranks without any tuner plugin."""
    return replace(place, plugin=None)
