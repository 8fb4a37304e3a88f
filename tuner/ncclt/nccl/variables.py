"""Names of NCCL_* variables, and the class of each: of the site, tuning, or of debugging.

Sources: the libraries of NCCL 2.16 to 2.32 (docs/reference/nccl-versions.json, which a test compares with this), and
NVIDIA's user guide. The values of those that ncclt may set are in `ncclt.nccl.parameters`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ncclt.core.cluster import PER_RANK
from ncclt.nccl.parameters import CATALOGUE


class VariableClass(StrEnum):
    """Class of a variable, which decides whether it reaches the trials of a study.

    Attributes:
        SITE: a fact of the cluster. Every trial has it, the default's too, and it is part of the fingerprint.
        TUNING: a choice that the search makes, or a user. Trials have it only in the arm *today*.
        DEBUG: logs, dumps and checks. No trial has it.
        UNKNOWN: ncclt does not know the name. Every trial has it, and a note names it.
    """

    SITE = "site"
    TUNING = "tuning"
    DEBUG = "debug"
    UNKNOWN = "unknown"


_SITE: dict[str, str] = {
    "names the network and its addresses": """
        SOCKET_IFNAME SOCKET_FAMILY OOB_NET_ENABLE OOB_NET_IFNAME COMM_ID NET NET_PLUGIN GIN_ENABLE GIN_PLUGIN GIN_TYPE
        RMA_PLUGIN IBVERBS_LIB IB_DISABLE IB_HCA IB_GID_INDEX IB_ADDR_FAMILY IB_ADDR_RANGE IB_ROCE_VERSION_NUM IB_PKEY
        IB_PKEY_VALUE IB_DATA_DIRECT IB_DEVICE_PCI_ORDER IB_MERGE_NICS IB_MERGE_VFS IB_SORT_MERGE_NICS
        IB_SUBNET_AWARE_ROUTING IB_SUBNET_PREFIX_LEN IB_ROUTABLE_FLID_GID_INDEX IB_RAIL_POLICY IB_QUERY_PORT_SPEED
        NET_MERGE_LEVEL NET_MERGE_POLICY NET_FORCE_MERGE NETDEVS_POLICY CROSS_NIC""",
    "sets the quality of service on the fabric": "IB_TC IB_SL IB_FIFO_TC GIN_IB_TC",
    "depends on the routing and packet order of the fabric": """
        IB_ADAPTIVE_ROUTING IB_AR_THRESHOLD IB_PCI_RELAXED_ORDERING IB_OOO_RQ IB_RECEIVER_SIDE_MATCHING_SCHEME
        IB_ECE_ENABLE GIN_IB_OOO_OPT""",
    "keeps jobs alive on this fabric": """
        IB_TIMEOUT IB_RETRY_CNT IB_RETURN_ASYNC_EVENTS IB_EVENT_BASED_LB IB_EVENT_BASED_LB_REMOTE IB_MQP_RETRY_ALL
        IB_MQP_RETRY_CNT IB_MQP_RETRY_SLEEP_MSEC IB_RESILIENCY_PORT_FAILOVER IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS
        IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY IB_RESILIENCY_PORT_RECOVERY IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT
        IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE
        IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT
        IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX IB_RESILIENCY_PORT_RECOVERY_START_DELAY IGNORE_NET_MISMATCH
        IGNORE_COLLNET_MISMATCH SOCKET_MAGIC SOCKET_POLL_TIMEOUT_MSEC SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC
        UID_STAGGER_RATE UID_STAGGER_THRESHOLD RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR COMM_BLOCKING
        IPC_USE_ABSTRACT_SOCKET GDR_FLUSH_DISABLE NET_FORCE_FLUSH""",
    "describes the machine": """
        TOPO_FILE TOPO_SPLIT_MLOPART GRAPH_FILE HOSTID MNNVL_ENABLE MNNVL_UUID MNNVL_CLIQUE_ID MNNVL_CROSS_CLIQUE
        MNNVL_RAIL_PER_HOST MNNVL_SCATTER_NETS_ENABLE NET_GDR_LEVEL NET_GDR_READ NET_GDR_C2C PXN_C2C LL128_C2C
        DMABUF_ENABLE GDRCOPY_ENABLE GDRCOPY_FIFO_ENABLE GDRCOPY_FLUSH_ENABLE GDRCOPY_SYNC_ENABLE
        GDRCOPY_USE_INTERNAL_DMABUF P2P_LEVEL P2P_DISABLE P2P_READ_ENABLE P2P_DIRECT_DISABLE IGNORE_DISABLED_P2P
        SHM_DISABLE SHM_LOCALITY NVB_DISABLE CUMEM_ENABLE CUMEM_HOST_ENABLE IGNORE_CPU_AFFINITY PROXY_CPUSET
        MULTI_RANK_GPU_ENABLE""",
    "names a file or plugin with settings of the site": "CONF_FILE ENV_PLUGIN",
    "enables reductions in the network": "COLLNET_ENABLE COLLNET_NODE_THRESHOLD",
}

_DEBUG: dict[str, str] = {
    "logs": """
        DEBUG DEBUG_FILE DEBUG_LEVELS DEBUG_SUBSYS DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS WARN_ENABLE_DEBUG_INFO
        REPORT_CONNECT_PROGRESS IB_WARN_RAIL_LOCAL PARAM_DUMP_ALL SET_THREAD_NAME NVTX_DISABLE""",
    "writes a file": """
        TOPO_DUMP_FILE TOPO_DUMP_FILE_RANK GRAPH_DUMP_FILE GRAPH_DUMP_FILE_RANK PROXY_DUMP_SIGNAL
        RMA_PROXY_DUMP_SIGNAL""",
    "checks or watches": """
        CHECK_MODE CHECK_POINTERS ENABLE_VERSION_CHECK LAUNCH_RACE_FATAL PROFILER_PLUGIN RUN_DIAGNOSTICS
        RUN_RAS_DIAGNOSTICS DIAGNOSTICS_ECC_THRESHOLD DIAGNOSTICS_IB_BW_TIMEOUT GIN_ERROR_QUERY_SEC
        IB_WQE_LATENCY_REPORT IB_WQE_LATENCY_THRESHOLD_NS PROGRESS_COUNTERS PROGRESS_COUNTER_MONITOR_POLL_MS
        PROGRESS_COUNTER_MONITOR_STALE_MS PROGRESS_COUNTER_MONITOR_STALE_WARN_SEC NET_PLUGIN_REF_COUNT
        GIN_PLUGIN_REF_COUNT RMA_PLUGIN_REF_COUNT""",
    "makes NCCL read variables again": "NO_CACHE",
}

_TUNING = """
    ALLGATHERV_ENABLE ALLOC_P2P_NET_LL_BUFFERS CE_CHUNK_SIZE CE_COLL_AG_MULTICAST_THRESHOLD CE_INTRA_GPU_MEMCPY_ENABLE
    CFT_ENABLE COMM_SHRINK_SHARE_RESOURCES COMM_SPLIT_SHARE_RESOURCES CONNECT_ROUND_MAX_PEERS DEV_API_JIT
    DISABLE_MEM_MANAGER ELASTIC_BUFFER_REGISTER ENQUEUE_REARCH_ENABLE GDAKI_FORCE_MCST GDAKI_USE_RELIABLE_DB
    GIN_GDAKI_LAG_AWARE_DISABLE GIN_GDAKI_MAX_DEST_RD_ATOMIC GIN_GDAKI_MAX_QP_RD_ATOMIC GIN_GDAKI_NIC_HANDLER
    GIN_GDAKI_QP_DEPTH GIN_NCONNECTIONS GIN_PROXY_NTHREADS GIN_PROXY_POLL_BATCH GIN_PROXY_QUEUE_SIZE
    GRAPH_HELPER_DISABLE GRAPH_STREAM_ORDERING GROUP_CUDA_STREAM HIER_CE_COLL_AG_RAIL_RING_ENABLE HIER_CE_COLL_NUM_CTX
    IB_PREPOST_RECEIVE_WORK_REQUESTS IB_USE_INLINE L1_SHARED_MEMORY_CARVEOUT LEGACY_CUDA_REGISTER LSA_TEAM_SIZE
    MAX_NRINGS MEM_SYNC_DOMAIN MIN_NRINGS MULTI_SEGMENT_REGISTER NET_DISABLE_INTRA NET_OPTIONAL_RECV_COMPLETION
    NET_SHARED_BUFFERS NET_SHARED_COMMS NUM_RMA_CTX NUM_RMA_INT_CTX NVB_PRECONNECT NVLINK_UTIL_CENTRIC_SCHED_ENABLE
    NVLS_UB_SIZE P2P_EPOCH_ENABLE P2P_MAX_PEERS P2P_PER_CHANNEL_REG_NET_BW RMA_DISABLE RMA_EAGER_INIT
    RMA_IB_WR_BATCHSIZE RMA_MULTI_CTX_THRESHOLD RMA_PROXY_QUEUE_SIZE SET_CPU_STACK_SIZE SHADOW_MEMPOOL_MAX_SIZE
    SINGLE_PROC_MEM_REG_ENABLE SYM_CE_THRESHOLD SYM_GIN_KERNELS_ENABLE SYM_KERNEL SYM_NOWIN_ENABLE
    SYM_REUSE_SYSMEM_HANDLES SYM_RS_GIN_CHUNK_SIZE SYM_TMA_ENABLE TUNER_PLUGIN UNPACK_DOUBLE_NCHANNELS WIN_STRIDE
    WORK_ARGS_BYTES"""
"""Tuning variables that have no row in `ncclt.nccl.parameters`."""

_PREFIXES: dict[str, tuple[VariableClass, str]] = {
    "NCCL_TESTS_": (VariableClass.DEBUG, "is read by nccl-tests"),
    "NCCL_INSPECTOR_": (VariableClass.DEBUG, "is read by a profiler plugin"),
    "NCCL_PROFILE_": (VariableClass.DEBUG, "is read by a profiler plugin"),
    "NCCL_TUNER_": (VariableClass.TUNING, "is read by a tuner plugin"),
    "RCCL_": (VariableClass.TUNING, "is read by RCCL"),
    **{
        f"NCCL_{name}_": (VariableClass.SITE, "is read by a network plugin")
        for name in ("GPUDIRECTTCPX", "FASTRAK", "FASTSOCKET", "SHARP", "IBEXT", "UCX", "SHIMNET")
    },
}

_WITH_A_TUNER_PLUGIN = (
    *("NCCLT_TABLE", "NCCLT_POLICY", "NCCLT_POLICY_CHECKSUM", "NCCLT_POLICY_SHM", "NCCLT_DELEGATE"),
    *("NCCLT_AGREEMENT", "NCCLT_LIVE"),
)

OLD_PYTORCH = frozenset(
    f"NCCL_{name}" for name in ("ASYNC_ERROR_HANDLING", "BLOCKING_WAIT", "DESYNC_DEBUG", "ENABLE_TIMING", "TIMEOUT")
)
"""Variables that PyTorch up to 2.1 reads, and NCCL never."""

_BUILDS = ("HOME", "ROOT", "ROOT_DIR", "INCLUDE_DIR", "LIB_DIR", "LIBRARY", "VERSION", "SOURCE_DIR")

_CLASSES: dict[str, tuple[VariableClass, str]] = {
    **{row.variable: (VariableClass.TUNING, row.note or "changes how NCCL communicates") for row in CATALOGUE},
    **{f"NCCL_{name}": (VariableClass.TUNING, "changes how NCCL communicates") for name in _TUNING.split()},
    **{f"NCCL_{name}": (VariableClass.SITE, why) for why, names in _SITE.items() for name in names.split()},
    **{f"NCCL_{name}": (VariableClass.DEBUG, why) for why, names in _DEBUG.items() for name in names.split()},
    **dict.fromkeys(_WITH_A_TUNER_PLUGIN, (VariableClass.TUNING, "gives the tuner plugin its policy")),
    **dict.fromkeys(OLD_PYTORCH, (VariableClass.DEBUG, "is read by PyTorch up to 2.1 only")),
    **{f"NCCL_{name}": (VariableClass.SITE, "is set in images and read by builds") for name in _BUILDS},
}

KNOWN = frozenset(_CLASSES)
"""Full names of the variables of the newest NCCL, of PyTorch and of builds; plugins have more."""

_OF_EVERY_START = frozenset(
    f"NCCL_{name}"
    for name in (
        *_SITE["keeps jobs alive on this fabric"].split(),
        *_SITE["names a file or plugin with settings of the site"].split(),
        *("COMM_ID", "HOSTID", "MNNVL_UUID", "MNNVL_CLIQUE_ID", *_BUILDS),
    )
)
"""Variables of the site that do not affect times, or that differ between jobs."""

_DEFAULTS = {row.variable: str(row.default) for row in CATALOGUE}


def classify(name: str) -> tuple[VariableClass, str]:
    """Return the class of a variable, and the reason as the end of a sentence.

    >>> classify("NCCL_IB_HCA")
    (<VariableClass.SITE: 'site'>, 'names the network and its addresses')
    """
    if name in _CLASSES:
        return _CLASSES[name]
    unknown = (VariableClass.UNKNOWN, "is not a variable that ncclt knows")
    return next((kind for prefix, kind in _PREFIXES.items() if name.startswith(prefix)), unknown)


OF_ENVIRONMENT = "the environment"
"""Source of the variables that a process inherits."""


def read_environment(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the value and the source of each variable that NCCL reads in an environment.

    The first source counts, as for NCCL (src/misc/param.cc): the environment, the file that NCCL_CONF_FILE names or
    else ~/.nccl.conf, and /etc/nccl.conf.
    """
    named = environ.get("NCCL_CONF_FILE")
    own = Path(named) if named else Path(environ["HOME"]) / ".nccl.conf" if environ.get("HOME") else None
    variables = {name: (value, OF_ENVIRONMENT) for name, value in environ.items()}
    for path in filter(None, (own, Path("/etc/nccl.conf"))):
        variables = {name: (value, str(path)) for name, value in _read_conf(path).items()} | variables
    return variables


def _read_conf(path: Path) -> dict[str, str]:
    try:
        with path.open(errors="replace") as file:
            lines = file.read(1 << 20).splitlines()
    except OSError:
        return {}  # NCCL reads nothing there either
    variables: dict[str, str] = {}
    for name, equals, value in (line.partition("=") for line in lines if not line.startswith("#")):
        if equals:
            variables.setdefault(name.strip(), value)  # NCCL does not overwrite what is set
    return variables


def site_variables(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of what every trial and job of a site has and what can change times, sorted.

    That is its class SITE, what ncclt does not know, and tuning that a configuration file sets. NCCL's own defaults are
    left out, and values of variables that NCCL itself does not read are masked.
    """
    variables = []
    for name, (value, source) in sorted(read_environment(environ).items()):
        kind = classify(name)[0]
        of_site = kind in (VariableClass.SITE, VariableClass.UNKNOWN)
        of_file = kind is VariableClass.TUNING and source != OF_ENVIRONMENT
        matters = name not in _OF_EVERY_START and _DEFAULTS.get(name) != value
        if name.startswith("NCCL_") and (of_site or of_file) and matters:
            variables.append((name, masked(name, value)))
    return tuple(variables)


def may_differ_by_node(name: str) -> bool:
    """Return True if nodes of one job may have different values: interfaces, files, variables of plugins."""
    return name in PER_RANK or name not in KNOWN


def masked(name: str, value: str) -> str:
    """Return the value of a variable for stores and pages: a hash, where it is a plugin's and may be a secret."""
    if name in KNOWN or name.startswith("RCCL_"):
        return value
    return f"sha256:{hashlib.sha256(value.encode(errors='surrogatepass')).hexdigest()[:12]}"  # not all is UTF-8


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitVariables:
    """The NCCL_* variables of an environment by class, each with its value.

    Attributes:
        site, tuning, debug, unknown: see `VariableClass`.
    """

    site: Mapping[str, str]
    tuning: Mapping[str, str]
    debug: Mapping[str, str]
    unknown: Mapping[str, str]

    @property
    def of_trials(self) -> dict[str, str]:
        """Return the variables of every trial."""
        return {**self.site, **self.unknown}

    @property
    def of_job(self) -> dict[str, str]:
        """Return the variables of the user's job, without those of debugging."""
        return {**self.site, **self.unknown, **self.tuning}


def split_variables(environ: Mapping[str, str]) -> SplitVariables:
    """Return the NCCL_* variables of an environment by class, sorted by name.

    If a tuner plugin is set, the variables that give it a policy are included.
    """
    ours = _WITH_A_TUNER_PLUGIN if "NCCL_TUNER_PLUGIN" in environ else ()
    by_class: dict[str, dict[str, str]] = {kind.value: {} for kind in VariableClass}
    for name in sorted(name for name in environ if name.startswith("NCCL_") or name in ours):
        by_class[classify(name)[0]][name] = environ[name]
    return SplitVariables(**by_class)
