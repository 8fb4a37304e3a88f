"""How several ranks come to share one GPU in one process, and which variables that takes (nccl.md, section 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ncclt.core.nccl_version import NcclVersion
from ncclt.errors import UsageError

RESIDENT_BLOCKS = 96
"""Channels of all ranks together at most: each is a block that needs a multiprocessor of its own, all at once, and an
H200 has 132. More would wait for a place that never becomes free: a hang."""

MOST_RANKS = 8

_SHARED: Mapping[str, str] = {
    # One context for all ranks: more streams than connections would wait for each other without cause.
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    # A kernel that is loaded at its first call stops the device, while another rank's kernel waits for this one.
    "CUDA_MODULE_LOADING": "EAGER",
    # Connect everything at the start: connecting late allocates memory while kernels of other ranks wait.
    "NCCL_RUNTIME_CONNECT": "0",
    "NCCL_CGA_CLUSTER_SIZE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_RAS_ENABLE": "0",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET_PLUGIN": "none",
    "NCCL_NET_GDR_LEVEL": "LOC",
    # Handles of the new memory API are passed between processes as files, which sandboxes do not allow.
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_CUMEM_HOST_ENABLE": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One way.

    Attributes:
        name: `fake-hosts` or `one-host`.
        since: first NCCL that can do it.
        copies: whether every rank has a copy of the library of its own, and so a host of its own.
        network: whether the ranks talk over NCCL's network, here sockets over loopback.
        told: what a reader of the results must know, in a few words.
        environ: variables of the process, beside those that every recipe has.
    """

    name: str
    since: NcclVersion
    copies: bool
    network: bool
    told: str
    environ: Mapping[str, str]

    def variables(self, ranks: int, *, most_channels: int | None = None) -> dict[str, str]:
        """Return the environment of the process that holds the ranks.

        Args:
            ranks: how many.
            most_channels: of one rank, None = as many as fit on the GPU at once.
        """
        channels = min(most_channels or RESIDENT_BLOCKS, RESIDENT_BLOCKS // ranks)
        return {**_SHARED, **self.environ, "NCCL_MAX_CTAS": str(channels)}

    def check(self, version: NcclVersion, ranks: int) -> None:
        """Refuse what cannot work.

        Raises:
            UsageError: with the reason.
        """
        if version < self.since:
            raise UsageError(
                f"recipe {self.name} needs NCCL {self.since}, this is {version}", hint="use --recipe fake-hosts"
            )
        if not 2 <= ranks <= MOST_RANKS:
            raise UsageError(f"{ranks} ranks on one GPU are not 2 to {MOST_RANKS}", hint="see --ranks")


FAKE_HOSTS = Recipe(
    name="fake-hosts",
    since=NcclVersion(2, 18),
    copies=True,
    network=True,
    told="ranks as fake hosts in one process, sockets over loopback",
    environ={"NCCL_NET": "Socket", "NCCL_MNNVL_ENABLE": "0"},
)
"""Recipe B: K copies of the library with different host ids are K nodes of one GPU each."""

ONE_HOST = Recipe(
    name="one-host",
    since=NcclVersion(2, 30, 3),
    copies=False,
    network=False,
    told="ranks of one node in one process, direct copies within the memory of one GPU",
    environ={"NCCL_MULTI_RANK_GPU_ENABLE": "1"},
)
"""Recipe A: NCCL itself allows several ranks on one GPU."""

RECIPES = {recipe.name: recipe for recipe in (FAKE_HOSTS, ONE_HOST)}
