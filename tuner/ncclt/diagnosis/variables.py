"""Names of variables that begin with NCCL_: who reads them, and what became of old ones.

Sources: NCCL user guide of 2.30 ("Environment Variables") and `strings` of NCCL 2.28 to 2.32 (nccl.md, section 5). What
ncclt can tune or must leave alone stands in `ncclt.core.parameters`; here is the rest.
"""

from __future__ import annotations

from ncclt.core.parameters import CATALOGUE, Parameter

PARAMETERS: dict[str, Parameter] = {row.variable: row for row in CATALOGUE}
"""What ncclt.core knows, by the variable's full name."""

_OTHERS = """
ALLOC_P2P_NET_LL_BUFFERS CHECKS_DISABLE CHECK_MODE CHECK_POINTERS COLLNET_NODE_THRESHOLD COMM_BLOCKING COMM_ID
COMM_SHRINK_SHARE_RESOURCES COMM_SPLIT_SHARE_RESOURCES CONF_FILE CREATE_THREAD_CONTEXT DEBUG DEBUG_FILE DEBUG_SUBSYS
DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS DMABUF_ENABLE ENV_PLUGIN GDRCOPY_ENABLE GDRCOPY_FIFO_ENABLE
GDRCOPY_FLUSH_ENABLE GDRCOPY_SYNC_ENABLE GIN_ENABLE GIN_PLUGIN GIN_TYPE GRAPH_DUMP_FILE GRAPH_DUMP_FILE_RANK GRAPH_FILE
GRAPH_HELPER_DISABLE GRAPH_STREAM_ORDERING HOSTID IB_ADDR_FAMILY IB_ADDR_RANGE IB_ASYNC_EVENTS IB_DATA_DIRECT IB_DISABLE
IB_ECE_ENABLE IB_MERGE_VFS IB_PKEY IB_RETRY_CNT IB_RETURN_ASYNC_EVENTS IB_ROCE_VERSION_NUM IB_TIMEOUT IB_USE_INLINE
IB_WARN_RAIL_LOCAL IGNORE_COLLNET_MISMATCH IGNORE_NET_MISMATCH L1_SHARED_MEMORY_CARVEOUT LAUNCH_RACE_FATAL
LEGACY_CUDA_REGISTER LL128_C2C MAX_NRINGS MEM_SYNC_DOMAIN MIN_NRINGS MNNVL_CLIQUE_ID MNNVL_CLIQUE_SIZE MNNVL_ENABLE
MNNVL_SCATTER_NETS_ENABLE MNNVL_UUID MULTI_RANK_GPU_ENABLE NET NETDEVS_POLICY NET_DISABLE_INTRA NET_FORCE_FLUSH
NET_FORCE_MERGE NET_GDR_C2C NET_MERGE_POLICY NET_OPTIONAL_RECV_COMPLETION NET_PLUGIN NET_PLUGIN_REF_COUNT
NET_SHARED_BUFFERS NET_SHARED_COMMS NO_CACHE NRINGS NUM_RMA_CTX NVB_DISABLE NVB_PRECONNECT
NVLINK_UTIL_CENTRIC_SCHED_ENABLE NVTX_DISABLE OOB_NET_ENABLE OOB_NET_IFNAME P2P_EPOCH_ENABLE P2P_MAX_PEERS
PROFILER_PLUGIN PROXY_CPUSET PROXY_DUMP_SIGNAL PXN_C2C RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR REPORT_CONNECT_PROGRESS
RINGS SET_CPU_STACK_SIZE SET_THREAD_NAME SINGLE_PROC_MEM_REG_ENABLE SOCKET_FAMILY SOCKET_POLL_TIMEOUT_MSEC
SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC SYM_CE_THRESHOLD SYM_KERNEL TOPO_DUMP_FILE TOPO_DUMP_FILE_RANK TOPO_FILE
TUNER_PLUGIN UID_STAGGER_RATE UID_STAGGER_THRESHOLD WARN_ENABLE_DEBUG_INFO WORK_ARGS_BYTES
"""

OTHERS = frozenset(f"NCCL_{name}" for name in _OTHERS.split())
"""Read by NCCL and none of ncclt's business as parameters."""

PLUGIN_PREFIXES = (
    "NCCL_TESTS_", "NCCL_INSPECTOR_", "NCCL_PROFILE_", "NCCL_TUNER_", "NCCL_GPUDIRECTTCPX_", "NCCL_FASTRAK_",
    "NCCL_FASTSOCKET_", "NCCL_SHARP_", "NCCL_IBEXT_", "NCCL_UCX_", "NCCL_SHIMNET_",
)  # fmt: skip
"""Read by nccl-tests and by plugins."""

OLD_PYTORCH = frozenset(
    {"NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING", "NCCL_TIMEOUT"}
)  # fmt: skip
"""Read by PyTorch up to 2.1 and by nobody since."""

BUILDS = frozenset(
    {"NCCL_HOME", "NCCL_ROOT", "NCCL_ROOT_DIR", "NCCL_INCLUDE_DIR", "NCCL_LIB_DIR", "NCCL_LIBRARY", "NCCL_VERSION",
     "NCCL_SOURCE_DIR"}
)  # fmt: skip
"""Set in images and read by builds; harmless."""

REMOVED: dict[str, tuple[str, str]] = {
    "NCCL_SINGLE_RING_THRESHOLD": ("2.3", "it has no successor"),
    "NCCL_IB_CUDA_SUPPORT": ("2.4", "use NCCL_NET_GDR_LEVEL"),
    "NCCL_IB_GDR_LEVEL": ("2.4", "use NCCL_NET_GDR_LEVEL"),
    "NCCL_LL_THRESHOLD": ("2.5", "NCCL chooses by a model since"),
    "NCCL_TREE_THRESHOLD": ("2.5", "NCCL chooses by a model since, and this forces neither ring nor tree"),
}
"""Variable -> (NCCL that no longer reads it, what there is instead)."""

REPLACED: dict[str, tuple[str, str]] = {
    "NCCL_MAX_NRINGS": ("2.5", "NCCL_MAX_CTAS"),
    "NCCL_MIN_NRINGS": ("2.5", "NCCL_MIN_CTAS"),
    "NCCL_NRINGS": ("2.5", "NCCL_MIN_CTAS and NCCL_MAX_CTAS"),
    "NCCL_MAX_NCHANNELS": ("2.17", "NCCL_MAX_CTAS"),
    "NCCL_MIN_NCHANNELS": ("2.17", "NCCL_MIN_CTAS"),
    "NCCL_CHECKS_DISABLE": ("2.2", "NCCL_CHECK_MODE"),
    "NCCL_CHECK_POINTERS": ("2.29.7", "NCCL_CHECK_MODE"),
}
"""Variable -> (NCCL that prefers another one, which); the old ones still act."""

PER_RANK = frozenset(
    f"NCCL_{name}"
    for name in (
        "SOCKET_IFNAME", "OOB_NET_IFNAME", "IB_HCA", "IB_GID_INDEX", "HOSTID", "DEBUG", "DEBUG_FILE", "DEBUG_SUBSYS",
        "TOPO_FILE", "TOPO_DUMP_FILE", "TOPO_DUMP_FILE_RANK", "GRAPH_DUMP_FILE", "GRAPH_DUMP_FILE_RANK", "RAS_ADDR",
        "MNNVL_CLIQUE_ID", "CONF_FILE",
    )
)  # fmt: skip
"""What may differ between the ranks of a job (nccl.md, section 5, "Global rule")."""

READ_BY_EVERY_RANK = frozenset(
    f"NCCL_{name}"
    for name in (
        "ALGO", "PROTO", "BUFFSIZE", "NTHREADS", "MIN_NCHANNELS", "MAX_NCHANNELS", "MIN_CTAS", "MAX_CTAS", "CROSS_NIC",
        "P2P_DISABLE", "P2P_LEVEL", "SHM_DISABLE", "NVLS_ENABLE", "COLLNET_ENABLE",
    )
)  # fmt: skip
"""What each rank reads while it starts: a rank that does not tell of it does not have it (graph/tuning.cc, init.cc)."""

SITE = frozenset(
    f"NCCL_{name}"
    for name in (
        "SOCKET_IFNAME", "SOCKET_FAMILY", "OOB_NET_ENABLE", "OOB_NET_IFNAME", "IB_HCA", "IB_GID_INDEX", "IB_TC",
        "IB_SL", "IB_FIFO_TC", "IB_TIMEOUT", "IB_RETRY_CNT", "IB_PKEY", "IB_ADDR_FAMILY", "IB_ADDR_RANGE",
        "IB_ROCE_VERSION_NUM",
        "IB_ECE_ENABLE", "IB_RETURN_ASYNC_EVENTS", "IB_ADAPTIVE_ROUTING", "NET_PLUGIN", "TUNER_PLUGIN",
        "PROFILER_PLUGIN", "ENV_PLUGIN", "TOPO_FILE", "CONF_FILE", "HOSTID", "MNNVL_ENABLE", "MNNVL_UUID",
        "MNNVL_CLIQUE_ID", "RAS_ADDR", "RAS_ENABLE", "RAS_TIMEOUT_FACTOR", "UID_STAGGER_RATE", "UID_STAGGER_THRESHOLD",
        "SET_THREAD_NAME", "IGNORE_CPU_AFFINITY", "COLLNET_NODE_THRESHOLD", "COMM_BLOCKING", "NO_CACHE", "NET",
    )
)  # fmt: skip
"""What a site rightly sets for good (user guide, "System configuration")."""


def is_known(name: str) -> bool:
    """Tell whether somebody reads a variable of this name."""
    tables = (PARAMETERS, OTHERS, OLD_PYTORCH, BUILDS, REMOVED, REPLACED)
    return any(name in table for table in tables) or name.startswith(PLUGIN_PREFIXES)


def known_names() -> list[str]:
    """Return the names that NCCL reads, for looking for a similar one."""
    return sorted({*PARAMETERS, *OTHERS})
