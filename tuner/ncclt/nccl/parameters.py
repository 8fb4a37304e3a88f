"""The catalogue of NCCL's environment variables: what each may be, since when, and whether ncclt may touch it.

Figures: NVIDIA/nccl 2.30.7 (src/misc/param.cc, src/init.cc, src/graph/tuning.cc, src/transport) and NVIDIA's NCCL user
guide, "Environment Variables". First releases: the libraries themselves (docs/reference/nccl-versions.json).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ncclt.core.nccl_version import NcclVersion
from ncclt.errors import SettingError


class Granularity(StrEnum):
    """Frequency at which NCCL rereads a variable.

    Attributes:
        CALL: at every call, by a tuner plugin.
        COMMUNICATOR: at every communicator's start.
        REFRESHED: at every communicator's start only if NCCL_NO_CACHE (2.29.7) names it; else once per process.
        PROCESS: only once per process.
    """

    CALL = "call"
    COMMUNICATOR = "communicator"
    REFRESHED = "communicator-with-no-cache"
    PROCESS = "process"


Domain = tuple[int | str, ...] | range | None
"""A tuple = every legal value that makes sense; a range = bounds and step; None = free text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """NCCL variable.

    Attributes:
        name: name without `NCCL_`.
        values: legal values (`Domain`).
        default: NCCL's default; None = chosen at run time.
        since: first NCCL version that reads it; 2.0 also for versions that are no longer in use.
        deprecated_since: from this version on something else should be used; None = it is current.
        granularity: how often it is read.
        safe: reviewed: no value of the domain can corrupt data, keep a job from starting or leave the network that
            the site chose. What is not safe is never set by ncclt.
        note: advice before changing it.
        ladder: values to search besides the default; empty = not searched.
    """

    name: str
    values: Domain
    default: int | str | None
    since: NcclVersion
    granularity: Granularity
    safe: bool = False
    deprecated_since: NcclVersion | None = None
    note: str = ""
    ladder: tuple[int, ...] = ()

    @property
    def variable(self) -> str:
        """Return the name with `NCCL_`."""
        return f"NCCL_{self.name}"

    def exists_in(self, version: NcclVersion) -> bool:
        """Return True if this NCCL reads the variable."""
        return version >= self.since

    def is_deprecated_in(self, version: NcclVersion) -> bool:
        """Return True if this NCCL has a replacement for it."""
        return self.deprecated_since is not None and version >= self.deprecated_since

    def allows(self, value: int | str) -> bool:
        """Return True if a value is in the domain; free text must be one printable word."""
        if isinstance(value, bool):
            return False
        if self.values is None:
            return isinstance(value, str) and value.isascii() and value.isprintable() and len(value.split()) == 1
        if isinstance(self.values, range):
            return isinstance(value, int) and value in self.values
        return value in self.values


def _row(
    name: str, since: str, read: Granularity, values: Domain, default: int | str | None, note: str = "", **fields: Any
) -> Parameter:
    first = NcclVersion.parse(since)
    return Parameter(name=name, since=first, granularity=read, values=values, default=default, note=note, **fields)


_KIB, _MIB = 1024, 1024 * 1024
_CALL, _COMM, _FRESH, _PROC = Granularity.CALL, Granularity.COMMUNICATOR, Granularity.REFRESHED, Granularity.PROCESS
_OFF_ON = (0, 1)
_OFF_ON_AUTO = (0, 1, 2)
_COUNT = range(1, 65)
_POWERS_TO_64 = (1, 2, 4, 8, 16, 32, 64)
_CHUNK = range(32 * _KIB, _MIB + 1, 4 * _KIB)
_P2P_CHUNK = range(32 * _KIB, 2 * _MIB + 1, 4 * _KIB)
_BYTES = range(2**31)
_CTAS = NcclVersion(2, 17)
_PATHS = ("LOC", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")

CATALOGUE: tuple[Parameter, ...] = (
    # Choice of algorithm: these are written by the compiler from rules, never from a policy's parameters.
    _row("ALGO", "2.5", _COMM, None, None, "an algorithm that a collective lacks makes its call fail since 2.24"),
    _row("PROTO", "2.5", _COMM, None, None, "naming LL128, or any ^ list, bypasses NCCL's safety check of LL128"),
    _row("MIN_CTAS", "2.17", _FRESH, _COUNT, 1, "channels at least; beyond NCCL's own they take SMs from compute",
         safe=True, ladder=(16, 32, 64)),
    _row("MAX_CTAS", "2.17", _FRESH, _COUNT, 64, "channels at most", safe=True),
    _row("MIN_NCHANNELS", "2.5", _FRESH, _COUNT, None, "use MIN_CTAS", safe=True, deprecated_since=_CTAS),
    _row("MAX_NCHANNELS", "2.5", _FRESH, _COUNT, 64, "use MAX_CTAS", safe=True, deprecated_since=_CTAS),
    # What the search may vary first. Upper end 16 MiB: memory grows with BUFFSIZE x channels x peers.
    _row("BUFFSIZE", "2.0", _FRESH, tuple(_MIB << n for n in range(5)), 4 * _MIB,
         "memory per channel and peer, for sending and for receiving; must be equal on all ranks", safe=True,
         ladder=(_MIB, 2 * _MIB, 8 * _MIB, 16 * _MIB)),
    _row("NTHREADS", "2.0", _FRESH, (64, 128, 256, 512), 512, "Ring only, and through thresholds the channels",
         safe=True, ladder=(64, 128, 256)),
    # Shape of the kernels.
    _row("THREAD_THRESHOLDS", "2.5", _COMM, None, None, "six numbers; bytes per thread before fewer channels"),
    _row("CGA_CLUSTER_SIZE", "2.15", _FRESH, range(9), None, "4 from compute capability 90"),
    _row("LL128_NTHREADS", "2.5", _FRESH, range(160, 641, 32), 640),
    _row("LL_BUFFSIZE", "2.7", _FRESH, _BYTES, 512 * _KIB, "not validated by NCCL"),
    _row("LL128_BUFFSIZE", "2.7", _FRESH, _BYTES, 4915200, "not validated by NCCL"),
    _row("CHUNK_SIZE", "2.12", _FRESH, _BYTES, 0, "not clamped: may run out of the buffer"),
    _row("CTA_POLICY", "2.27", _PROC, _OFF_ON_AUTO, 0, "0 default, 1 efficiency, 2 zero"),
    _row("WORK_FIFO_BYTES", "2.22", _PROC, _BYTES, _MIB),
    # Send and receive, all to all.
    # At most BUFFSIZE / 8, see p2p_chunk.py. Not the 2 MiB of NVIDIA-NeMo/Megatron-Bridge#3226: with 64 P2P channels,
    # as MIN_CTAS can open, the size of the buffers, channels x 16 x chunk, overflows NCCL's int (net.cc:666).
    _row("P2P_NET_CHUNKSIZE", "2.14", _FRESH, _CHUNK, 128 * _KIB,
         "send_recv and all_to_all between nodes; memory per GPU: 32 x chunk x P2P channels", safe=True,
         ladder=(64 * _KIB, 256 * _KIB, 512 * _KIB, _MIB)),
    _row("P2P_PCI_CHUNKSIZE", "2.16", _FRESH, _P2P_CHUNK, 128 * _KIB, "send_recv and all_to_all in a node, over PCIe",
         safe=True, ladder=(64 * _KIB, 256 * _KIB, 512 * _KIB, _MIB, 2 * _MIB)),
    _row("P2P_NVL_CHUNKSIZE", "2.16", _FRESH, _P2P_CHUNK, 512 * _KIB, "send_recv and all_to_all in a node, over NVLink",
         safe=True, ladder=(64 * _KIB, 128 * _KIB, 256 * _KIB, _MIB, 2 * _MIB)),
    _row("P2P_LL_THRESHOLD", "2.14", _CALL, _BYTES, 16 * _KIB, "up to here send_recv uses LL"),
    # Channels of send_recv and all_to_all: within `p2p_chunk.serves_all_peers`, and behind a hang gate. 32 per peer is
    # left out: it has hung at 16 ranks (NVIDIA/nccl#1915).
    _row("MIN_P2P_NCHANNELS", "2.7", _FRESH, _POWERS_TO_64, 1, "beyond NCCL's own they take SMs from compute",
         safe=True, ladder=(16, 32, 64)),
    _row("MAX_P2P_NCHANNELS", "2.7", _FRESH, _POWERS_TO_64, 64, "MIN_P2P_NCHANNELS takes precedence", safe=True,
         ladder=(4, 8, 16, 32)),
    _row("NCHANNELS_PER_NET_PEER", "2.12", _FRESH, (1, 2, 4, 8, 16), None,
         "beyond NCCL's own they take SMs from compute", safe=True, ladder=(2, 4, 8, 16)),
    _row("P2P_PER_CHANNEL_NET_BW", "2.29", _FRESH, range(1, 1001), 14, "GB/s; the above follows from it"),
    _row("P2P_SCHEDULE_GROUP_SIZE", "2.28.7", _FRESH, range(1, 9), 8),
    _row("P2P_PXN_LEVEL", "2.12", _FRESH, _OFF_ON_AUTO, 2),
    # Paths between GPUs.
    _row("P2P_LEVEL", "2.0", _PROC, None, None, "a path such as NVL or SYS"),
    _row("P2P_DISABLE", "2.0", _PROC, _OFF_ON, 0),
    _row("P2P_READ_ENABLE", "2.7", _FRESH, _OFF_ON, None, "PCIe platforms"),
    _row("P2P_DIRECT_DISABLE", "2.12", _PROC, _OFF_ON, 0),
    _row("P2P_USE_CUDA_MEMCPY", "2.0", _PROC, _OFF_ON, 0, "may hang"),
    _row("IGNORE_DISABLED_P2P", "2.0", _PROC, _OFF_ON_AUTO, 0, "may hang or corrupt"),
    _row("SHM_DISABLE", "2.0", _FRESH, _OFF_ON, 0),
    _row("SHM_LOCALITY", "2.13", _PROC, (1, 2), 2),
    _row("NVLS_ENABLE", "2.17", _FRESH, _OFF_ON_AUTO, 2, "1 is an error where NVLS cannot work"),
    _row("NVLS_NCHANNELS", "2.17", _FRESH, _COUNT, None, "16, on Blackwell 24 or 32"),
    _row("NVLS_CHUNKSIZE", "2.21", _FRESH, _CHUNK, 128 * _KIB),
    _row("NVLSTREE_MAX_CHUNKSIZE", "2.20", _FRESH, _CHUNK, None),
    _row("COLLNET_ENABLE", "2.6", _COMM, _OFF_ON, 0, "needs a SHARP plugin"),
    _row("PAT_ENABLE", "2.23", _FRESH, _OFF_ON_AUTO, 2, "1 with several GPUs per node is not supported"),
    # Network.
    _row("NET", "2.0", _PROC, None, None, "the network: IB, Socket, or that of a plugin"),
    _row("NET_PLUGIN", "2.0", _PROC, None, None, "a library with another network"),
    _row("IB_DISABLE", "2.0", _PROC, _OFF_ON, 0, "1 leaves InfiniBand for TCP"),
    _row("TOPO_FILE", "2.5", _PROC, None, None, "another topology than the one that NCCL detects"),
    _row("GRAPH_FILE", "2.5", _PROC, None, None, "other rings and trees than those that NCCL searches"),
    _row("MNNVL_ENABLE", "2.21", _PROC, _OFF_ON_AUTO, 2, "NVLink between nodes"),
    _row("CROSS_NIC", "2.5", _FRESH, _OFF_ON_AUTO, 2, "depends on how the fabric is wired"),
    _row("NET_GDR_LEVEL", "2.4", _PROC, _PATHS, None),
    _row("NET_GDR_READ", "2.0", _FRESH, _OFF_ON, None),
    _row("PXN_DISABLE", "2.12", _PROC, _OFF_ON, 0),
    _row("NET_OVERHEAD", "2.18", _FRESH, _BYTES, None, "ns; changes NCCL's model and nothing else"),
    _row("NET_MERGE_LEVEL", "2.24", _COMM, None, "PORT"),
    _row("SOCKET_NTHREADS", "2.4.8", _FRESH, range(17), 0, "x NSOCKS_PERTHREAD at most 64", safe=True,
         ladder=(2, 4, 8)),
    _row("NSOCKS_PERTHREAD", "2.4.8", _FRESH, range(65), 0, "x SOCKET_NTHREADS at most 64; nothing without it",
         safe=True, ladder=(1, 2, 4, 8)),
    _row("SOCKET_INLINE", "2.27", _FRESH, _BYTES, 128),
    _row("SOCKET_MIN_TASKSIZE", "2.27", _FRESH, _BYTES, 64 * _KIB),
    _row("SOCKET_RCVBUF", "2.27", _FRESH, range(-1, 2**31), -1),
    _row("SOCKET_SNDBUF", "2.27", _FRESH, range(-1, 2**31), -1),
    _row("SOCKET_IFNAME", "2.0", _PROC, None, None, "the site's choice of network; may differ by rank"),
    _row("IB_HCA", "2.0", _PROC, None, None, "the site's choice of network; may differ by rank"),
    _row("IB_GID_INDEX", "2.0", _PROC, range(-1, 256), None, "the site's choice of network"),
    _row("IB_QPS_PER_CONNECTION", "2.10", _FRESH, range(1, 129), 1, "entropy for ECMP on RoCE", safe=True,
         ladder=(2, 4, 8)),
    _row("IB_SPLIT_DATA_ON_QPS", "2.18", _FRESH, _OFF_ON, 0, "1 before 2.20; only with several queue pairs", safe=True,
         ladder=(0, 1)),
    _row("IB_AR_THRESHOLD", "2.6", _PROC, _BYTES, 8192, "assumes an order of delivery"),
    _row("IB_ADAPTIVE_ROUTING", "2.16", _PROC, _OFF_ON, None, "assumes an order of delivery"),
    _row("IB_PCI_RELAXED_ORDERING", "2.12", _PROC, _OFF_ON_AUTO, 2, "assumes an order of delivery"),
    _row("IB_OOO_RQ", "2.30", _PROC, _OFF_ON, 0, "needs fabric and firmware that support it"),
    _row("IB_TC", "2.0", _FRESH, range(-1, 256), -1, "the site's quality of service"),
    _row("IB_SL", "2.0", _FRESH, range(-1, 16), -1, "the site's quality of service"),
    _row("IB_FIFO_TC", "2.22", _FRESH, range(-1, 256), -1, "the site's quality of service"),
    _row("IB_MERGE_NICS", "2.20", _PROC, _OFF_ON, 1),
    _row("PROXY_APPEND_BATCH_SIZE", "2.16", _FRESH, range(1, 1025), 16),
    _row("PROGRESS_APPENDOP_FREQ", "2.16.5", _FRESH, range(1, 1025), 8),
    # Contracts with the application and the machine.
    _row("GRAPH_REGISTER", "2.11", _FRESH, _OFF_ON, 1),
    _row("LOCAL_REGISTER", "2.19", _FRESH, _OFF_ON, 1),
    _row("GRAPH_MIXING_SUPPORT", "2.13", _COMM, _OFF_ON, 1, "0 is a promise of the application"),
    _row("LAUNCH_MODE", "2.0", _PROC, ("PARALLEL", "GROUP"), "PARALLEL"),
    _row("LAUNCH_ORDER_IMPLICIT", "2.26", _PROC, _OFF_ON, 0),
    _row("CUMEM_ENABLE", "2.18", _PROC, _OFF_ON, None),
    _row("CUMEM_HOST_ENABLE", "2.23", _PROC, _OFF_ON, None),
    _row("RUNTIME_CONNECT", "2.22", _FRESH, _OFF_ON, 1),
    _row("GDR_FLUSH_DISABLE", "2.0", _PROC, _OFF_ON, 0, "may corrupt data"),
    _row("IGNORE_CPU_AFFINITY", "2.0", _PROC, _OFF_ON, 0),
    _row("SET_STACK_SIZE", "2.0", _PROC, _OFF_ON, 0),
    _row("SYM_CTAS", "2.27", _FRESH, range(65), 0, "symmetric windows only"),
    _row("WIN_ENABLE", "2.27", _FRESH, _OFF_ON, 1, "symmetric windows only"),
)  # fmt: skip
"""Every variable that ncclt knows, grouped by what it acts on."""

SET_BY_RULES = frozenset({"ALGO", "PROTO", "MAX_CTAS", "MIN_NCHANNELS", "MAX_NCHANNELS"})
"""Variables that a policy expresses by its rules, never by its parameters."""

_BY_NAME = {row.name: row for row in CATALOGUE}

BY_VARIABLE = {row.variable: row for row in CATALOGUE}
"""Name with `NCCL_` -> row."""


def parameter(name: str) -> Parameter:
    """Return a row of the catalogue by its name, with or without `NCCL_`.

    Raises:
        SettingError: the name is unknown; the hint names close ones.
    """
    row = _BY_NAME.get(name.removeprefix("NCCL_"))
    if row is None:
        # Imported here: only a mistake needs it, and `ncclt env` must start fast.
        from difflib import get_close_matches

        close = get_close_matches(name.removeprefix("NCCL_").upper(), _BY_NAME, n=3)
        hint = f"did you mean {', '.join(close)}?" if close else "see ncclt.nccl.parameters for those that it knows"
        raise SettingError(f"ncclt knows no NCCL parameter {name!r}", hint=hint)
    return row


COMPETES_WITH_COMPUTE = "MIN_CTAS"
TAKES_SMS = (COMPETES_WITH_COMPUTE, "MIN_P2P_NCHANNELS", "NCHANNELS_PER_NET_PEER")
"""Searched only with concurrent compute: without it, more channels than NCCL's own always look good."""


def check_value(name: str, value: int | str, version: NcclVersion) -> None:
    """Refuse a value that this NCCL would reject or misread.

    Raises:
        SettingError: no such parameter, not in this version, or the value is outside its domain.
    """
    row = parameter(name)
    if not row.exists_in(version):
        raise SettingError(f"NCCL {version} does not know {row.variable}", hint=f"it came with NCCL {row.since}")
    if not row.allows(value):
        raise SettingError(f"{row.variable} cannot be {value!r}", hint=f"it takes {_domain(row)}")


def _domain(row: Parameter) -> str:
    if row.values is None:
        return "one word"
    if isinstance(row.values, range):
        step = f" in steps of {row.values.step}" if row.values.step > 1 else ""
        return f"{row.values.start} to {row.values[-1]}{step}"
    return ", ".join(str(value) for value in row.values)


def searchable(version: NcclVersion, *, beside_compute: bool = False) -> tuple[Parameter, ...]:
    """Return the parameters that a search may try: safe, current in this version, and with a ladder of values.

    Args:
        beside_compute: whether trials run beside a matrix product, as `TAKES_SMS` needs.
    """
    return tuple(
        row
        for row in CATALOGUE
        if row.safe
        and row.ladder
        and row.name not in SET_BY_RULES
        and (beside_compute or row.name not in TAKES_SMS)
        and row.exists_in(version)
        and not row.is_deprecated_in(version)
    )


MOST_SOCKETS = 64
"""NCCL's MAX_SOCKETS: threads times sockets per thread (net_socket.cc)."""

_MOST_DOUBLED, _BUFFER_OF_2_MIB = 512 * _KIB, 16 * _MIB
"""Largest P2P_NET_CHUNKSIZE that is no 2 MiB after NCCL doubles it on Arm, and the BUFFSIZE from which 2 MiB fit."""


def go_together(values: Mapping[str, int]) -> bool:
    """Return True if values of several parameters can be combined.

    More sockets than NCCL has are cut silently; sockets per thread have no effect without threads, and data can only be
    split over several queue pairs. A chunk of 2 MiB between nodes overflows with 64 P2P channels (net.cc:666).
    """
    if values.get("P2P_NET_CHUNKSIZE", 0) > _MOST_DOUBLED and values.get("BUFFSIZE", 0) >= _BUFFER_OF_2_MIB:
        return False
    threads, sockets = values.get("SOCKET_NTHREADS", 0), values.get("NSOCKS_PERTHREAD", 0)
    if threads * sockets > MOST_SOCKETS or (sockets and not threads):
        return False
    return "IB_SPLIT_DATA_ON_QPS" not in values or values.get("IB_QPS_PER_CONNECTION", 1) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A variable that names a file.

    Attributes:
        variable: its whole name.
        without: what happens if the file is not there.
        library: what a short name of a library is put behind: `x` means `libnccl-tuner-x.so`; None = no library.
        written: the job makes the file, so only its folder must be there.
    """

    variable: str
    without: str
    library: str | None = None
    written: bool = False


FILES: dict[str, NamedFile] = {
    row.variable: row
    for row in (
        NamedFile(variable="NCCL_CONF_FILE", without="NCCL reads neither it nor ~/.nccl.conf, and does not say so"),
        NamedFile(variable="NCCL_TOPO_FILE", without="NCCL uses the topology that it detects itself"),
        NamedFile(variable="NCCL_GRAPH_FILE", without="NCCL does not start"),
        NamedFile(variable="NCCL_TUNER_PLUGIN", library="libnccl-tuner", without="NCCL uses its own tuner"),
        NamedFile(variable="NCCL_NET_PLUGIN", library="libnccl-net", without="NCCL uses its own InfiniBand or sockets"),
        NamedFile(variable="NCCL_PROFILER_PLUGIN", library="libnccl-profiler", without="nothing is profiled"),
        NamedFile(variable="NCCL_ENV_PLUGIN", library="libnccl-env", without="its variables are not set"),
        NamedFile(variable="NCCL_GIN_PLUGIN", library="libnccl-gin", without="NCCL uses its own GIN"),
        NamedFile(variable="NCCL_RMA_PLUGIN", library="libnccl-rma", without="NCCL uses its own RMA"),
        NamedFile(variable="NCCL_IBVERBS_LIB", library="", without="NCCL uses sockets in place of InfiniBand"),
        NamedFile(variable="NCCL_TUNER_CONFIG_FILE", without="the tuner plugin that reads it has no table"),
        NamedFile(variable="NCCLT_POLICY", without="the tuner plugin has no table"),
        NamedFile(
            variable="NCCLT_DELEGATE", library="libnccl-tuner", without="the tuner behind the plugin is not asked"
        ),
        NamedFile(variable="NCCL_DEBUG_FILE", written=True, without="NCCL logs to standard output"),
        NamedFile(variable="NCCL_TOPO_DUMP_FILE", written=True, without="NCCL writes no topology"),
        NamedFile(variable="NCCL_GRAPH_DUMP_FILE", written=True, without="NCCL writes no graphs"),
    )
}
"""Every variable that names a file, by its whole name (plugin_open.cc, graph/xml.cc, misc/param.cc, debug.cc)."""
