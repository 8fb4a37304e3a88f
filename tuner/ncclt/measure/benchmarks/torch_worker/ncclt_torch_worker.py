"""Measures collectives with PyTorch, one process per rank, and reports what rank 0 found.

This file and the one with the measuring are self-contained, so that launchers can copy them to nodes without ncclt:
Python 3.9, PyTorch 2.6 and nothing else. Ranks agree over the rendezvous store and never over the backend, so only the
messages themselves go through NCCL. With `--controller` the ranks are persistent and receive one trial after another
(`ncclt_torch_session.py`); without it they measure once. Not tested on a GPU; tested on gloo.
"""

from __future__ import annotations

import argparse
import base64
import functools
import gc
import json
import os
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

VERSION = 1  # of the result; the reader knows only this one
CHUNK_CHARACTERS = 512  # far below the length at which pipes and launchers cut lines

# (rank, ranks, rank on its node, number of the node), the most specific first: torchrun and mpirun run inside of
# Slurm's environment too. SLURM_STEP_NUM_TASKS and not SLURM_NTASKS, which is set in batch scripts as well.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", ""),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", ""),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID"),
)

# What may differ between ranks: interfaces and files of one host, its name, and what is logged.
FREE_VARIABLES = ("NCCL_HOSTID", "NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "NCCL_IB_HCA", "NCCL_TOPO_", "NCCL_DEBUG")


class RefusedError(Exception):
    """The measurement cannot be done, and every rank knows why, so that only rank 0 has to report it."""


class RankPlace(NamedTuple):
    """The position of this process in the job; the name of its node is NCCL's if set, else the launcher's."""

    rank: int
    world_size: int
    local_rank: int
    node: str


def find_place(environ: Mapping[str, str]) -> RankPlace:
    """Read the launcher's variables."""
    for rank, world_size, local_rank, node in LAUNCHERS:
        if all(name in environ for name in (rank, world_size, local_rank)):
            if "MASTER_ADDR" not in environ or "MASTER_PORT" not in environ:
                raise RefusedError("MASTER_ADDR and MASTER_PORT have to name the host of rank 0 and a free port there")
            name = f"node {environ[node]}" if node in environ else socket.gethostname()
            name = environ.get("NCCL_HOSTID", name)
            return RankPlace(int(environ[rank]), int(environ[world_size]), int(environ[local_rank]), name)
    raise RefusedError("no launcher has given this process a rank: start it with torchrun, mpirun or srun")


class Agreement:
    """Makes all ranks reach one answer, over the rendezvous store only."""

    def __init__(self, store: Any, rank: int, world_size: int, timeout_s: float) -> None:
        self._store, self._rank, self._others, self._timeout_s = store, rank, range(1, world_size), timeout_s
        self._round = 0

    def reach(self, mine: Any, decide: Callable[[list[Any]], Any]) -> Any:
        """Return the decision of rank 0 from the values of all ranks; all ranks have to call in the same order."""
        # What all have read would fill the store over days of trials; rank 0's answer is read a round later.
        if (last := self._round if self._rank else self._round - 1) > 0:
            self._store.delete_key(f"{last}/{self._rank}")
        self._round += 1
        if self._rank:
            self._store.set(f"{self._round}/{self._rank}", json.dumps(mine))
            return json.loads(self._wait(f"{self._round}/", [0])[0])
        answer = decide([mine, *map(json.loads, self._wait(f"{self._round}/", self._others))])
        self._store.set(f"{self._round}/0", json.dumps(answer))
        return answer

    def require(self, problem: str) -> None:
        """Return only if no rank has a problem; otherwise every rank raises RefusedError with the first."""
        if first := self.reach(problem, lambda problems: next(filter(None, problems), "")):
            raise RefusedError(first)

    def leave(self) -> None:
        """Keep rank 0, which may host the store, until all ranks have read the last answer."""
        if self._rank:
            self._store.set(f"leave/{self._rank}", "")
        else:
            self._wait("leave/", self._others)

    def _wait(self, prefix: str, ranks: Sequence[int]) -> list[bytes]:
        keys = [f"{prefix}{rank}" for rank in ranks]
        try:
            self._store.wait(keys, timedelta(seconds=self._timeout_s))
        except RuntimeError as error:
            silent = [str(rank) for rank, key in zip(ranks, keys) if not self._store.check([key])]  # noqa: B905  3.9
            raise TimeoutError(f"no response from rank {', '.join(silent[:8])} in {self._timeout_s:g} s") from error
        return [bytes(value) for value in self._store.multi_get(keys)]


def describe_self(place: RankPlace, backend: str) -> dict[str, Any]:
    """Return this rank's facts for the others; `problem` is why it cannot take part."""
    import torch
    import torch.distributed as dist

    equal = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
    equal["version of PyTorch"] = torch.__version__
    facts = {"host": socket.gethostname(), "node": place.node, "device": "cpu", "index": -1, "problem": ""}
    if backend == "nccl":
        count = torch.cuda.device_count()
        # If only one GPU is visible, the launcher has assigned it, or all ranks share it.
        index = 0 if count == 1 else place.local_rank
        if not dist.is_nccl_available():
            facts["problem"] = f"PyTorch {torch.__version__} is built without NCCL"
        elif index >= count:
            facts["problem"] = f"it is number {index} on its node, where PyTorch sees {count} GPUs"
        else:
            version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
            equal["version of NCCL"] = ".".join(map(str, version))
            facts |= {"device": torch.cuda.get_device_name(index), "index": index}
    return {**facts, "equal": equal}


def examine(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compare the facts of the ranks, in their order: return a problem (or none), and where everything runs."""
    nodes: dict[str, list[int]] = {}
    for rank, fact in enumerate(facts):
        nodes.setdefault(fact["node"], []).append(rank)
    return {
        "problem": next(_objections(facts), ""),
        "nodes": list(nodes.values()),
        "hosts": [fact["host"] for fact in facts],
        "devices": sorted({fact["device"] for fact in facts}),
        "equal": facts[0]["equal"],
    }


def _objections(facts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    first = facts[0]["equal"]
    for rank, fact in enumerate(facts):
        if fact["problem"]:
            yield f"rank {rank} on {fact['host']}: {fact['problem']}"
    for rank, fact in enumerate(facts):
        for name in sorted({*first, *fact["equal"]}):
            ours, peers = first.get(name, "unset"), fact["equal"].get(name, "unset")
            if ours != peers and not name.startswith(FREE_VARIABLES):
                yield f"{name} is {ours} on rank 0 and {peers} on rank {rank} on {fact['host']}: NCCL would hang"


def plan_groups(nodes: Sequence[Sequence[int]], group_size: int, across: bool) -> list[list[int]]:
    """Divide the world into groups of one kind, which all work at the same time, as in a training.

    Groups within nodes are neighbours. Groups across nodes take every n-th rank, so they are spread evenly over as many
    nodes as possible: ranks of equal local rank if there are as many as nodes (data parallelism).
    """
    order = [rank for node in nodes for rank in node]
    refusal = f"{len(order)} ranks on {len(nodes)} nodes cannot be cut into groups of {group_size}"
    if group_size == len(order):
        return [sorted(order)]
    if not across:
        if any(len(node) % group_size for node in nodes):
            raise RefusedError(f"{refusal} within nodes")
        return [sorted(node[i : i + group_size]) for node in nodes for i in range(0, len(node), group_size)]
    node_of = {rank: number for number, node in enumerate(nodes) for rank in node}
    stride = len(order) // group_size
    groups = [sorted(order[i::stride]) for i in range(stride)]
    if len(order) % group_size or any(len({node_of[rank] for rank in group}) == 1 for group in groups):
        raise RefusedError(f"{refusal} across nodes")
    return groups


class WorkerReport:
    """Measurements and end of this rank; rank 0's is the result."""

    def __init__(self, output: Path | None) -> None:
        self._output = output
        self._began_s = time.monotonic()
        self.rank, self.doing = 0, ""
        self.document: dict[str, Any] = {"version": VERSION, "environment": {}, "beside": {}, "measurements": []}

    def begin(self) -> None:
        """Count seconds from now, the same moment on every rank: the first failure is the cause of the others."""
        self._began_s = time.monotonic()

    def fail(self, reason: str) -> int:
        """Print in one line why this rank ends, and return its exit code."""
        print(self.failure(reason), file=sys.stderr)  # noqa: T201
        return 1

    def failure(self, reason: str) -> str:
        """Note why the measurement failed, and return it in one line."""
        after_s = time.monotonic() - self._began_s
        rank, line = f"rank {self.rank} on {socket.gethostname()}", " ".join(f"{self.doing}{reason}".split())[:1000]
        self.document["error"] = line
        return f"ncclt: {rank} failed after {after_s:.6f} s: {line}"

    def write(self) -> None:
        """Write the result as a file, or in short lines that can be found among other output."""
        if self.rank:
            return
        if self._output is not None and self._output.parent.is_dir():
            part = self._output.with_name(self._output.name + ".part")
            part.write_text(json.dumps(self.document, separators=(",", ":")), encoding="utf-8")
            part.replace(self._output)
        else:
            print("\n".join(self.lines()))  # noqa: T201

    def lines(self) -> Iterator[str]:
        """Write the result in short lines."""
        packed = zlib.compress(json.dumps(self.document, separators=(",", ":")).encode())
        letters = base64.b64encode(packed).decode()
        chunks = [letters[i : i + CHUNK_CHARACTERS] for i in range(0, len(letters), CHUNK_CHARACTERS)]
        for number, chunk in enumerate(chunks, start=1):
            yield f"NCCLT-RESULT {number}/{len(chunks)} {zlib.crc32(packed):08x} {chunk}."


class Groups:
    """The groups of this rank, one of each kind, opened when a message needs them.

    The order of the messages is the same on all ranks, as opening groups requires.
    """

    def __init__(self, nodes: Sequence[Sequence[int]], rank: int, timeout: timedelta) -> None:
        self.nodes, self._rank, self._timeout = nodes, rank, timeout
        self._open: dict[tuple[int, bool], tuple[Any, list[int]]] = {}

    def of(self, message: Any) -> tuple[Any, list[int], int]:
        """Return the handle of this rank's group, its ranks and this rank's index among them."""
        import torch.distributed as dist

        kind = message.group_size, message.across
        if kind not in self._open:
            layout = plan_groups(self.nodes, *kind)
            is_whole_job = len(layout) == 1
            handles = [dist.group.WORLD if is_whole_job else dist.new_group(ranks, self._timeout) for ranks in layout]
            number = next(i for i, ranks in enumerate(layout) if self._rank in ranks)
            self._open[kind] = handles[number], layout[number]
        handle, ranks = self._open[kind]
        return handle, ranks, ranks.index(self._rank)


class RankJob(NamedTuple):
    """Facts that a rank has once all have met: `own` are its facts for the others, `environment` those of all."""

    place: RankPlace
    own: Mapping[str, Any]
    environment: Mapping[str, Any]
    store: Any
    agreement: Agreement
    device: torch.device
    timeout: timedelta

    def open_groups(self, name: str) -> Groups:
        """Make the process groups; each name is used once, because ranks meet under it."""
        import torch.distributed as dist
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        store, place = PrefixStore(name, self.store), self.place
        dist.init_process_group(self.environment["backend"], None, self.timeout, place.world_size, place.rank, store)
        return Groups(self.environment["nodes"], self.place.rank, self.timeout)


def meet(options: argparse.Namespace, report: WorkerReport) -> RankJob:
    """Meet the other ranks, and continue only if all of them can work together."""
    place = find_place(os.environ)
    report.rank = place.rank
    import torch
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]
    from torch.distributed.rendezvous import rendezvous

    timeout = timedelta(seconds=options.timeout_s)
    store = next(rendezvous("env://", place.rank, place.world_size, timeout=timeout))[0]
    agreement = Agreement(PrefixStore("ncclt", store), place.rank, place.world_size, options.timeout_s)
    own = describe_self(place, options.backend)
    environment = {"backend": options.backend, **agreement.reach(own, examine)}
    report.begin()
    report.document["environment"] = environment
    if environment["problem"]:
        agreement.leave()
        raise RefusedError(environment["problem"])
    device = torch.device("cuda", own["index"]) if own["index"] >= 0 else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return RankJob(place, own, environment, store, agreement, device, timeout)


def run(options: argparse.Namespace, report: WorkerReport) -> None:
    """Measure all messages in their order; the report holds what was measured, whatever happens."""
    job = meet(options, report)
    try:
        if options.controller:
            load(options.session).persist(sys.modules[__name__], job, options, report)
        else:
            import torch.distributed as dist

            measure_all(options, report, job.agreement, job.open_groups("groups"), job.device)
            dist.destroy_process_group()
    except RefusedError:
        job.agreement.leave()
        raise
    job.agreement.leave()


@functools.lru_cache(maxsize=None)  # noqa: UP033  as Python 3.9 has it
def load(file: Path) -> ModuleType:
    """Return the module in a file, which may have any name where it was copied to, even /dev/fd/4."""
    loader = SourceFileLoader(f"ncclt shipped {file}", str(file))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None, "a loader of source always gives one"
    module = sys.modules[loader.name] = module_from_spec(spec)  # dataclasses look their module up
    loader.exec_module(module)
    return module


def measure_all(
    options: argparse.Namespace, report: WorkerReport, agreement: Agreement, groups: Groups, device: torch.device
) -> None:
    """Measure one message after another, all of them beside the same work."""
    measuring = load(options.measuring)
    messages = [measuring.MeasuredMessage.parse(word) for word in options.messages]
    for message in messages:
        plan_groups(groups.nodes, message.group_size, message.across)  # refused before anything is measured
    with measuring.Gemm(device) if options.beside else nullcontext() as gemm:
        enough_us = options.enough_us or [0.0] * len(messages)
        for word, message, enough in zip(options.messages, messages, enough_us):  # noqa: B905  3.9 has no strict
            report.doing = f"{word}: "
            group = measuring.MeasuredGroup(*groups.of(message))
            result = measuring.measure(message, group, agreement, device, options.budget_s, enough or None)
            report.document["measurements"].append({"message": word, **result})
    report.doing = ""
    if gemm is not None:
        agreement.require("" if gemm.products else "the concurrent matrix product did not run")
        report.document["beside"] = {options.beside: gemm.products}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--budget-s", type=float, default=0.5, help="for timing one message")
    parser.add_argument("--enough-us", type=float, nargs="+", help="per message; slower ones get one batch; 0 = none")
    parser.add_argument("--timeout-s", type=float, default=90.0, help="to wait for other ranks, at the start and later")
    parser.add_argument("--beside", choices=("gemm",), help="work that runs at the same time")
    parser.add_argument("--output", type=Path, help="the result; left out, or without its folder: standard output")
    parser.add_argument("--measuring", type=Path, default=Path(__file__).with_name("ncclt_torch_measuring.py"))
    words = "collective:dtype:elements:group size[:across] ..."
    parser.add_argument("--messages", nargs="+", default=[], required="--controller" not in arguments, help=words)
    parser.add_argument("--controller", help="host:port: stay, and measure what is sent from there")
    for name in ("--token", "--session", "--connection"):
        parser.add_argument(name, type=Path, help="for staying: what proves this launch, and the files shipped along")
    options = parser.parse_args(arguments)
    if options.enough_us and len(options.enough_us) != len(options.messages):
        parser.error("--enough-us needs one number for each message")
    return options


def main(arguments: Sequence[str]) -> int:
    """Measure and report; returns the exit code."""
    gc.disable()  # its pauses would be measured, and importing PyTorch is a tenth faster
    options = parse(arguments)
    report = WorkerReport(options.output)
    code = 0
    try:
        run(options, report)
    except RefusedError as error:
        # All ranks have the reason. Only rank 0 prints it and fails: launchers end all ranks as soon as one has failed.
        if report.rank == 0:
            code = report.fail(str(error))
    except Exception as error:  # noqa: BLE001  any failure is reported in one line and ends this rank
        code = report.fail(f"{type(error).__name__}: {error}")
    report.write()
    return code


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # PyTorch takes half a second to shut down, and after a failure a backend may wait for its peers for ever.
    os._exit(exit_code)
