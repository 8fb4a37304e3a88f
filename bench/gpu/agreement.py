"""What happens when ranks do not agree about a tuner's decisions? Real NCCL, a process per rank, all on one GPU.

    python bench/gpu/agreement.py --output FOLDER [--points refuse,disagree,...] [--nccl PATH] [--recipe ...]

Nothing here is right or wrong: agreement.json says what was seen. Every rank is started, watched and ended within a
limit, as hanging is one of the answers. `torch_*`, `questions` and `switch` need PyTorch.

    refuse       a tuner whose init fails on one rank: what both ranks see
    disagree     ranks that answer one question differently: hang, error, wrong data, or nothing
    connect      NCCL_RUNTIME_CONNECT 0 and 1: memory, time to open, the first use of the tree at step 50
    estimates    how often a tuner is asked about a call, and whether an answer of LL changes that
    questions    what the tuner is asked on each rank by DDP, FSDP2, ZeRO-1, graphs, a compiled model: alike?
    switch       training whose table changes every 5 steps: the losses, and what it costs
    torch_refuse, torch_refuse_two_agents, torch_disagree    what PyTorch makes of it
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nccl import Library
from plugin_loads import table_text

from live import Place, add_options, place_of
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.core.policy import Policy, Rule
from ncclt.errors import MissingDependencyError, NccltError
from ncclt.nccl.tuner_plugin.build import compiler, source_folder

HERE = Path(__file__).parent
KIB, MIB = 1 << 10, 1 << 20
INVALID_USAGE = 5
TREE, RING = 0, 1
LL, SIMPLE = 0, 2

SAME = f"0:{RING}:{SIMPLE}:2"
"""Plan of all ranks before they part."""

PARTED_AT = 3

DISAGREEMENTS = {
    "nothing": ((RING, SIMPLE, 2), (RING, SIMPLE, 2)),
    "protocol": ((RING, LL, 2), (RING, SIMPLE, 2)),
    "algorithm": ((RING, SIMPLE, 2), (TREE, SIMPLE, 2)),
    "algorithm and protocol": ((RING, LL, 2), (TREE, SIMPLE, 2)),
    "channels": ((RING, SIMPLE, 2), (RING, SIMPLE, 1)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one process ended.

    Attributes:
        code: exit code; None = it was ended after its limit.
        events: what it told.
        words: last lines of what else it wrote.
    """

    code: int | None
    events: list[dict[str, Any]]
    words: str

    def report(self) -> dict[str, Any]:
        """Return the end of it for the result: the last event names where a rank hung."""
        state = "over its limit" if self.code is None else f"exit code {self.code}"
        last = {k: v for k, v in self.events[-1].items() if k != "at_s"} if self.events else {}
        return {"ended": state, "last": last, "words": self.words}


class Points:
    """Runs one point after another and keeps what was seen.

    Args:
        place: how the ranks share the GPU.
        named_nccl: whether NCCL was named, so that PyTorch has to be given it.
        probe: the plugin for experiments.
        limit_s: of a step that cannot hang.
        hang_s: how long a collective may take before it is said to hang.
    """

    def __init__(self, place: Place, *, named_nccl: bool, probe: Path, limit_s: float, hang_s: float) -> None:
        self.seen: dict[str, Any] = {}
        self._place, self._named_nccl, self._probe = place, named_nccl, probe
        self._limit_s, self._hang_s = limit_s, hang_s

    def run(self, names: Sequence[str], *, end: float) -> None:
        """Run points by their names while there is time; one that breaks is a result too."""
        for name in names:
            began = time.monotonic()
            if began > end:
                self.seen[name] = {"not tried": "no time left"}
            else:
                try:
                    self.seen[name] = POINTS[name](self)
                except NccltError as error:
                    self.seen[name] = {"failed": error.message}
                self.seen[name]["wall_s"] = round(time.monotonic() - began, 1)
            print(f"{name}: {json.dumps(self.seen[name])[:1500]}", flush=True)
            document = {"nccl": str(self._place.nccl), "recipe": self._place.recipe.name, "points": self.seen}
            (self._place.output / "agreement.json").write_text(json.dumps(document, indent=1) + "\n")

    def refuse(self) -> dict[str, Any]:
        """Let the tuner of one rank fail; its process ends, or stays for a while."""
        fails = {self._place.ranks - 1: {"PROBE_FAIL": str(INVALID_USAGE)}}
        return {
            "its process ends": self._told(self._ranks("refuse", calls=2, per_rank=fails)),
            "its process stays": self._told(self._ranks("refuse", calls=2, per_rank=fails, linger_s=2 * self._hang_s)),
        }

    def disagree(self) -> dict[str, Any]:
        """Let two ranks answer differently from the fourth question on."""
        seen: dict[str, Any] = {}
        for size in (16 * KIB, 4 * MIB):
            for name, plans in DISAGREEMENTS.items():
                per_rank = {
                    rank: {"PROBE_PLAN": f"{SAME},{PARTED_AT}:{':'.join(map(str, plans[min(rank, 1)]))}"}
                    for rank in range(self._place.ranks)
                }
                ranks = self._ranks("disagree", calls=PARTED_AT + 4, sizes=[size], per_rank=per_rank)
                told = self._told(ranks)
                for number, rank in enumerate(ranks):
                    told[f"rank {number}"]["wrong"] = [e["wrong"] for e in rank.events if e["event"] == "call done"]
                seen[f"{name}, {size >> 10} KiB"] = told
        return seen

    def connect(self) -> dict[str, Any]:
        """Open with everything connected or with nothing, and change to the tree late."""
        seen = {}
        plan = {"PROBE_PLAN": f"0:{RING}:{SIMPLE}:0,50:{TREE}:{SIMPLE}:0"}
        # Without the allocations of NCCL_CUMEM_ENABLE, NCCL connects everything at the start whatever it is told.
        tight = {"fill_at": 50, "leave_free_mib": 200}
        for value, more in (("0", {}), ("1", {}), ("1", tight), ("1", {**tight, "leave_free_mib": 8})):
            environ = {**plan, "NCCL_CUMEM_ENABLE": "1", "NCCL_RUNTIME_CONNECT": value}
            ranks = self._ranks("connect", environ=environ, calls=60, sizes=[4 * MIB], memory_at=[0, 50], **more)
            name = f"{value}, {more['leave_free_mib']} MiB free" if more else value
            seen[name] = {f"rank {n}": _connected(rank) for n, rank in enumerate(ranks)}
        return seen

    def estimates(self) -> dict[str, Any]:
        """Count the questions about twelve calls, with and without an answer of LL, and with symmetric kernels."""
        seen: dict[str, Any] = {}
        for name, environ in (
            ("", {}),
            (", symmetric kernels", {"NCCL_SYM_NOWIN_ENABLE": "1", "NCCL_CUMEM_ENABLE": "1"}),
        ):
            for answer, plan in (("none", ""), ("ring/ll", f"0:{RING}:{LL}:0")):
                folder = self._folder("estimates")
                ranks = self._ranks(
                    "estimates",
                    environ={**environ, "PROBE_LOG": str(folder), "PROBE_PLAN": plan},
                    calls=12,
                    sizes=[KIB, 16 * KIB, 256 * KIB, 4 * MIB],
                )
                seen[f"answer {answer}{name}"] = {**self._told(ranks), "communicators": compare_logs(folder)}
            seen[f"table of ncclt, ring/ll{name}"] = self._reported(environ)
        return seen

    def _reported(self, environ: Mapping[str, str]) -> dict[str, Any]:
        """Return what ncclt's own plugin reports of the same calls, with a rule of ring/ll for all."""
        folder, place = self._folder("estimates"), self._place
        rule = Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING, protocol=Protocol.LL)
        table = folder / "table.csv"
        nodes = place.ranks if place.recipe.network else 1
        version = Library(place.nccl).version()
        table.write_text(table_text(Policy(rules=(rule,)), nodes=nodes, ranks=place.ranks, nccl=version))
        ours = {
            "NCCL_TUNER_PLUGIN": str(place.plugin),
            "NCCLT_POLICY": str(table),
            "NCCLT_PLUGIN_REPORT": str(folder / "reports"),
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "TUNING",
        }
        ranks = self._ranks(
            "estimates", environ={**environ, **ours}, calls=12, sizes=[KIB, 16 * KIB, 256 * KIB, 4 * MIB]
        )
        reports = [path.read_text()[:1500] for path in sorted((folder / "reports").glob("*"))]
        return {**self._told(ranks), "reports": reports}

    def questions(self) -> dict[str, Any]:
        """Compare what the tuner was asked on each rank."""
        folder = self._folder("questions")
        environ = {"PROBE_LOG": str(folder), "PROBE_PLAN": ""}
        jobs = self._torch("questions", folder, [str(self._probe)], environ=environ, limit_s=self._limit_s)
        return {**jobs, "communicators": compare_logs(folder)}

    def switch(self) -> dict[str, Any]:
        """Compare the losses of trainings with other tables."""
        folder = self._folder("switch")
        environ = {"NCCL_TUNER_PLUGIN": str(self._place.plugin), "NCCLT_POLICY_SHM": "of the rank"}
        jobs = self._torch("switch", folder, [], environ=environ, limit_s=self._limit_s, processes=3)
        return {**jobs, "arms": [compare_arms(path) for path in sorted(folder.glob("rank-*.jsonl"))]}

    def torch_refuse(self) -> dict[str, Any]:
        """Let the tuner of one rank fail under PyTorch, with one agent."""
        environ = {"PROBE_FAIL_RANK": "1", "PROBE_FAIL_CODE": str(INVALID_USAGE)}
        return self._torch("refuse", self._folder("torch_refuse"), [], environ=environ, limit_s=4 * self._hang_s + 20)

    def torch_refuse_two_agents(self) -> dict[str, Any]:
        """Let the tuner of one rank fail under PyTorch, with an agent for each rank."""
        environ = {"PROBE_FAIL_RANK": "1", "PROBE_FAIL_CODE": str(INVALID_USAGE)}
        folder = self._folder("torch_refuse_two_agents")
        return self._torch("refuse", folder, [], environ=environ, limit_s=4 * self._hang_s + 20, agents=2)

    def torch_disagree(self) -> dict[str, Any]:
        """Let two ranks answer differently under PyTorch: first another algorithm, then other channels."""
        folder = self._folder("torch_disagree")
        first, then = f"{SAME},{PARTED_AT}:{RING}:{SIMPLE}:2", PARTED_AT + 2
        environ = {
            "PROBE_PLAN_0": f"{first},{then}:{RING}:{SIMPLE}:2",
            "PROBE_PLAN_1": f"{SAME},{PARTED_AT}:{TREE}:{SIMPLE}:2,{then}:{RING}:{SIMPLE}:1",
        }
        return self._torch("disagree", folder, [], environ=environ, limit_s=4 * self._hang_s + 20)

    def _told(self, ranks: Sequence[Ended]) -> dict[str, Any]:
        return {f"rank {number}": rank.report() for number, rank in enumerate(ranks)}

    def _folder(self, name: str) -> Path:
        folder = self._place.output / name
        folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=folder))

    def _environ(self, more: Mapping[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "NCCLT_", "PROBE_"))}
        place = self._place
        return {
            **kept,
            **place.recipe.variables(place.ranks, most_channels=place.most_channels),
            "NCCL_DEBUG": "WARN",
            "NCCL_TUNER_PLUGIN": str(self._probe),
            "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [kept.get("PYTHONPATH")])]),
            **more,
        }

    def _ranks(
        self,
        name: str,
        *,
        calls: int,
        environ: Mapping[str, str] | None = None,
        per_rank: Mapping[int, Mapping[str, str]] | None = None,
        **more: Any,
    ) -> list[Ended]:
        """Start a process per rank and return how they ended; `more` goes to each (agreement_rank.DEFAULTS)."""
        folder, place = self._folder(name), self._place
        started = []
        for rank in range(place.ranks):
            told = {
                "rank": rank,
                "ranks": place.ranks,
                "folder": str(folder),
                "nccl": str(place.nccl.absolute()),
                "cuda": None if place.cuda is None else str(place.cuda.absolute()),
                "calls": calls,
                "limit_s": self._hang_s,
                **more,
            }
            host = {"NCCL_HOSTID": f"ncclt-host-{rank}"} if place.recipe.network else {}
            own = {**host, "PROBE_RANK": str(rank), **(environ or {}), **(per_rank or {}).get(rank, {})}
            command = [sys.executable, str(HERE / "agreement_rank.py"), json.dumps(told)]
            started.append(_Process(command, self._environ(own), folder / f"rank-{rank}"))
        deadline = time.monotonic() + 20 + 2 * self._hang_s + calls * 0.1
        try:
            while time.monotonic() < deadline and not any(process.is_over() for process in started):
                time.sleep(0.05)
            # A rank that is left alone gets the time to notice it and to say so.
            deadline = min(deadline, time.monotonic() + 2 * self._hang_s + 1)
            return [process.ended(deadline) for process in started]
        finally:
            for process in started:
                process.kill()

    def _torch(
        self,
        what: str,
        folder: Path,
        more: Sequence[str],
        *,
        environ: Mapping[str, str],
        limit_s: float,
        agents: int = 1,
        processes: int = 2,
    ) -> dict[str, Any]:
        """Start torchrun, once per agent, and return how it ended and what the ranks told."""
        preload = {"LD_PRELOAD": str(self._place.nccl.absolute())} if self._named_nccl else {}
        told = {"CUDA_MODULE_LOADING": "LAZY", "OMP_NUM_THREADS": "1", **preload, **environ}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        started = []
        for agent in range(agents):
            command = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nnodes",
                str(agents),
                "--node-rank",
                str(agent),
                "--nproc-per-node",
                str(processes // agents),
                "--master-addr",
                "127.0.0.1",
                "--master-port",
                str(port),
                str(HERE / "agreement_torch.py"),
                what,
                str(folder),
                *more,
            ]
            started.append(_Process(command, self._environ(told), folder / f"agent-{agent}"))
        deadline, began = time.monotonic() + limit_s, time.monotonic()
        try:
            ended = [process.ended(deadline) for process in started]
        finally:
            for process in started:
                process.kill()
        ranks = {}
        for path in sorted(folder.glob("rank-*.jsonl")):
            events = [json.loads(line) for line in path.read_text().splitlines()]
            ranks[path.stem] = [
                {k: v for k, v in e.items() if k not in {"losses", "steps_ms", "choices", "publish_us"}} for e in events
            ]
        return {
            "agents": [one.report() for one in ended],
            "ranks": ranks,
            "seconds": round(time.monotonic() - began, 1),
        }


class _Process:
    """A process of its own group whose output goes to files, ended after its limit."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], stem: Path) -> None:
        self._told, self._words = stem.with_suffix(".out"), stem.with_suffix(".err")
        with self._told.open("wb") as told, self._words.open("wb") as words:
            self._process = subprocess.Popen(
                command, env=dict(environ), stdin=subprocess.DEVNULL, stdout=told, stderr=words, start_new_session=True
            )

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def ended(self, deadline: float) -> Ended:
        code: int | None
        try:
            code = self._process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        lines = self._told.read_text(errors="replace").splitlines()
        events = [json.loads(line) for line in lines if line.startswith('{"event"')]
        other = [line for line in lines if not line.startswith('{"event"')] + self._words.read_text(
            errors="replace"
        ).splitlines()
        words = [line.strip() for line in other if "WARN" in line or "Error" in line] or other[-3:]
        return Ended(code=code, events=events, words=" | ".join(words[:8])[:1500])

    def kill(self) -> None:
        """End what is left of the group: torchrun's ranks too."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)


def _connected(rank: Ended) -> dict[str, Any]:
    """Return memory and times of a rank that goes over to the tree late."""
    calls = {e["step"]: e for e in rank.events if e["event"] == "call done"}
    usual = statistics.median(e["ms"] for e in calls.values()) if calls else None
    return {
        **rank.report(),
        "init_ms": next((e["ms"] for e in rank.events if e["event"] == "init done"), None),
        "free_mib": {"before init": next((e["free_mib"] for e in rank.events if e["event"] == "init begins"), None)}
        | {_moment(e): e["free_mib"] for e in rank.events if e["event"] == "memory"},
        "usual_ms": usual,
        "first_call": calls.get(0),
        "first_call_of_the_tree": calls.get(50),
        "next_call_of_the_tree": calls.get(51),
        "wrong": sum(e["wrong"] for e in calls.values()),
    }


def _moment(event: Mapping[str, Any]) -> str:
    return "after init" if event["step"] < 0 else f"{'before' if event['before'] else 'after'} call {event['step']}"


def compare_logs(folder: Path) -> list[dict[str, Any]]:
    """Compare the ranks' logs of the probe, communicator by communicator."""
    logs: dict[str, dict[str, list[str]]] = {}
    for path in sorted(folder.glob("*-*.txt")):
        communicator, _, rank = path.stem.rpartition("-")
        logs.setdefault(communicator, {})[rank] = path.read_text().splitlines()[1:]
    return [_compared(ranks) for ranks in logs.values()]


def _compared(ranks: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Compare the questions of one communicator, phase by phase, in their order."""
    phases: dict[str, dict[str, list[str]]] = {}
    for rank, lines in ranks.items():
        for line in lines:
            name, *rest = line.rsplit(" ", 6)
            phases.setdefault(name, {}).setdefault(rank, []).append(" ".join(rest))
    rows = {}
    for name, told in phases.items():
        lists = [told.get(rank, []) for rank in ranks]
        rows[name] = {
            "questions": [len(one) for one in lists],
            "counted": [sum(line.split()[2] != "0" for line in one) for one in lists],
            "same_order": all(one == lists[0] for one in lists),
            "kinds": dict(Counter(lists[0]).most_common(8)),
        }
        if not rows[name]["same_order"]:
            rows[name]["first_difference"] = next(
                (
                    [one[i] if i < len(one) else None for one in lists]
                    for i in range(max(map(len, lists)))
                    if len({one[i] if i < len(one) else None for one in lists}) > 1
                ),
                None,
            )
    return {"ranks": sorted(ranks), "phases": rows}


def compare_arms(path: Path) -> dict[str, Any]:
    """Compare the arms of one rank with its first, and the steps after a change of the table with the others."""
    arms = [event for event in map(json.loads, path.read_text().splitlines()) if event["event"] == "arm"]
    rows: dict[str, Any] = {}
    for arm in arms:
        times: dict[str, list[float]] = {}
        for step, (choice, ms) in enumerate(zip(arm["choices"], arm["steps_ms"], strict=True)):
            if step >= 2 * arm["every"]:
                moment = "first step of" if step % arm["every"] == 0 else "other steps of"
                times.setdefault(f"{moment} {choice}", []).append(ms)
        pairs = list(zip(arm["losses"], arms[0]["losses"], strict=True))
        rows[arm["name"]] = {
            "steps": len(pairs),
            "different_losses": sum(one != first for one, first in pairs),
            "first_different_step": next((step for step, (one, first) in enumerate(pairs) if one != first), None),
            "most_relative_difference": max(abs(float.fromhex(a) / float.fromhex(b) - 1) for a, b in pairs),
            "median_ms": {name: round(statistics.median(values), 2) for name, values in times.items()},
            "publish_us": round(statistics.median(arm["publish_us"]), 1) if arm["publish_us"] else None,
        }
    return {"rank": path.stem, "arms": rows}


POINTS: dict[str, Callable[[Points], dict[str, Any]]] = {
    name: getattr(Points, name)
    for name in (
        "refuse",
        "disagree",
        "connect",
        "estimates",
        "questions",
        "switch",
        "torch_refuse",
        "torch_refuse_two_agents",
        "torch_disagree",
    )
}


def build_probe(target: Path) -> Path:
    """Compile the plugin for experiments.

    Raises:
        MissingDependencyError: there is no compiler, or it failed.
    """
    command = [
        str(compiler() or "cc"),
        "-std=gnu11",
        "-O2",
        "-fPIC",
        "-shared",
        f"-I{source_folder()}",
        "-o",
        str(target),
        str(HERE / "probe_tuner.c"),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise MissingDependencyError(f"probe_tuner.c does not compile: {error}", hint="install gcc") from error
    return target


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--points", default=",".join(POINTS), help="comma-separated (default all, in this order)")
    parser.add_argument("--minutes", type=float, default=4.0, help="begin no point after this (default 4)")
    parser.add_argument("--hang", type=float, default=5.0, help="seconds after which a collective hangs (default 5)")
    parser.add_argument("--torch-limit", type=float, default=90.0, help="seconds of one PyTorch job (default 90)")
    options = parser.parse_args(argv)
    names = options.points.split(",")
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))  # so that no rank outlives this
    try:
        if unknown := [name for name in names if name not in POINTS]:
            raise NccltError(f"there is no point {unknown[0]}", hint=f"use {', '.join(POINTS)}")
        place = place_of(options, room_bytes=4 * MIB)
        probe = build_probe(options.output.absolute() / "libnccl-tuner-probe.so")
        points = Points(
            place,
            named_nccl=options.nccl is not None,
            probe=probe,
            limit_s=options.torch_limit,
            hang_s=options.hang,
        )
        points.run(names, end=time.monotonic() + 60 * options.minutes)
    except NccltError as error:
        print(f"bench/gpu/agreement.py: {error.message}; {error.hint or ''}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
