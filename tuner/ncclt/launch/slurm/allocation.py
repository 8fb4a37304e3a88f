"""The Slurm allocation that this program runs in: its nodes, in the order of the ranks, and how to reach them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ncclt.errors import UsageError
from ncclt.launch.slurm.job import ask

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_MAX_HOSTS = 1_000_000
"""More than any cluster has; a mistyped range must not exhaust memory."""


def expand_hostlist(text: str) -> tuple[str, ...]:
    """Expand Slurm's short form of node names, as in `gpu[01-03,07],login2`, in order.

    Several brackets in one name are combined, the last one varying fastest. Leading zeros are kept, as Slurm does.

    Raises:
        UsageError: the text has another form.
    """
    words = re.findall(r"(?:[^\[\],\s]|\[[^\[\]]+\])+", text)
    if ",".join(words) != text or not words:
        raise _no_hostlist(text)
    hosts: list[str] = []
    for word in words:
        names = [""]
        for literal, inside in re.findall(r"([^\[\]]*)(?:\[([^\[\]]*)\])?", word):
            endings = _numbers(inside, text) if inside else [""]
            if len(names) * len(endings) + len(hosts) > _MAX_HOSTS:
                raise _no_hostlist(text)
            names = [name + literal + ending for name in names for ending in endings]
        hosts += names
    return tuple(hosts)


def _numbers(inside: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _no_hostlist(text)
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or int(last) - int(first) >= _MAX_HOSTS:
            raise _no_hostlist(text)
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def _no_hostlist(text: str) -> UsageError:
    return UsageError(f"{text[:200]!r} is not a list of Slurm nodes", hint="for example gpu[01-04,07]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Allocation of Slurm in which this program runs.

    Attributes:
        job_ids: of the job's components in their order; a job that is not heterogeneous has one.
        groups: names of each component's nodes.
        cpus_per_task: as requested by the job, to be requested again by each step (srun ignores it since Slurm
            22.05); None = not given.
        cpus: of each node, in order; empty = not given.
        addresses: (host, its address in Slurm) of the hosts whose address differs from their name.
    """

    job_ids: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    cpus_per_task: int | None = None
    cpus: tuple[int, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of all nodes, in the order in which Slurm numbers ranks."""
        return tuple(host for group in self.groups for host in group)

    def address(self, host: str) -> str:
        """Return the address of a node for the other nodes."""
        return dict(self.addresses).get(host, host)

    def require_cpus(self, hosts: Sequence[str], *, tasks_per_node: int) -> None:
        """Refuse an allocation made without a number of tasks, which Slurm gives one CPU per node.

        Raises:
            UsageError: a node has fewer CPUs than its tasks need.
        """
        granted = dict(zip(self.hosts, self.cpus, strict=False))
        few = min((granted[host], host) for host in hosts) if all(host in granted for host in hosts) else None
        if few is not None and few[0] < tasks_per_node * (self.cpus_per_task or 1):
            each = f" of {self.cpus_per_task} CPUs each" if self.cpus_per_task else ""
            raise UsageError(
                f"Slurm allocation {self.job_ids[0]} has {few[0]} CPUs on {few[1]}, too few for {tasks_per_node} tasks"
                f"{each}, one for each GPU",
                hint=f"allocate with --exclusive, or with --ntasks-per-node={tasks_per_node}",
            )

    def choose(self, *, nodes: int, hosts: Sequence[str]) -> tuple[str, ...]:
        """Return the nodes of a launch in the order of the ranks: the named ones, or the first ones.

        Raises:
            UsageError: the allocation has too few nodes, or not these.
        """
        if unknown := [host for host in hosts if host not in self.hosts]:
            raise UsageError(
                f"{', '.join(unknown)} is not in Slurm allocation {self.job_ids[0]}",
                hint=f"its nodes are {', '.join(self.hosts)}",
            )
        if nodes > len(self.hosts):
            raise UsageError(
                f"{nodes} nodes requested, but Slurm allocation {self.job_ids[0]} has {len(self.hosts)}",
                hint=f"use --nodes {len(self.hosts)}, or allocate more",
            )
        # Slurm numbers ranks in the order of its own list, whatever the order in which nodes are named to srun.
        return tuple(host for host in self.hosts if host in hosts) if hosts else self.hosts[:nodes]


def read_allocation(
    environment: Mapping[str, str], *, addresses_of: Callable[[Mapping[str, str], str], dict[str, str]] | None = None
) -> Allocation | None:
    """Return the allocation that an environment describes; None = there is none, as on a login node.

    Args:
        environment: of this program; salloc, sbatch and srun set SLURM_* in it.
        addresses_of: asks Slurm for the addresses of nodes; None = they are reached by their names.

    Raises:
        UsageError: the environment contradicts itself.
    """
    job_id = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOB_ID_HET_GROUP_0")
    if not job_id:
        return None
    suffixes = [f"_HET_GROUP_{number}" for number in range(int(environment.get("SLURM_HET_SIZE") or 0))] or [""]
    groups = tuple(expand_hostlist(environment.get(f"SLURM_JOB_NODELIST{suffix}", "")) for suffix in suffixes)
    hosts = ",".join(host for group in groups for host in group)
    addresses = addresses_of(environment, hosts) if addresses_of is not None else {}
    # As in `8(x2),4` (sbatch(1), SLURM_JOB_CPUS_PER_NODE).
    cpus = re.findall(r"(\d+)(?:\(x(\d+)\))?(?:,|$)", environment.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return Allocation(
        job_ids=tuple(environment.get(f"SLURM_JOB_ID{suffix}") or job_id for suffix in suffixes),
        groups=groups,
        cpus_per_task=int(environment["SLURM_CPUS_PER_TASK"]) if environment.get("SLURM_CPUS_PER_TASK") else None,
        cpus=tuple(int(each) for each, times in cpus for _ in range(int(times or 1))),
        addresses=tuple(sorted((host, address) for host, address in addresses.items() if host != address)),
    )


def addresses_by_scontrol(environment: Mapping[str, str], hosts: str) -> dict[str, str]:
    """Ask Slurm for the address of each node; a node without an answer is reached by its name.

    Names of nodes need not resolve in the network: cloud nodes and test clusters are reached by `NodeAddr` alone.
    """
    try:
        nodes = ask(("scontrol", "show", "nodes", hosts, "--oneliner"), environment).stdout
    except OSError:
        return {}
    return dict(re.findall(r"(?m)^NodeName=(\S+).*?\sNodeAddr=(\S+)", nodes))
