"""Names of variables that begin with NCCL_: who reads them, and which ones were removed.

Sources: the libraries of NCCL 2.16 to 2.32 (docs/reference/nccl-versions.json, which a test compares with this), and
NVIDIA's user guide. What ncclt can tune or must leave alone is in `ncclt.nccl.parameters`; here is the rest.
"""

from __future__ import annotations

import re

from ncclt.nccl.parameters import CATALOGUE, Parameter

_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")

_ALSO_WORDS = frozenset({"NCCL_CTA_POLICY"})
"""Also accept words (user guide)."""

_FURTHER = frozenset(
    f"NCCL_{name}"
    for name in (
        "IB_DISABLE", "IB_TIMEOUT", "IB_RETRY_CNT", "NVB_DISABLE", "MNNVL_ENABLE", "DMABUF_ENABLE", "RAS_ENABLE",
        "NET_SHARED_BUFFERS", "NET_SHARED_COMMS", "NET_GDR_C2C", "PXN_C2C", "COMM_BLOCKING", "GDRCOPY_ENABLE",
        "MULTI_RANK_GPU_ENABLE", "OOB_NET_ENABLE", "COLLNET_NODE_THRESHOLD", "LL128_C2C",
    )
)  # fmt: skip
"""Numeric variables that have no row in `ncclt.nccl.parameters`."""

LIMITS: dict[str, tuple[int, int]] = {
    "NCCL_MIN_CTAS": (1, 64), "NCCL_MAX_CTAS": (1, 64), "NCCL_MIN_NCHANNELS": (1, 64), "NCCL_MAX_NCHANNELS": (1, 64),
    "NCCL_NTHREADS": (64, 512), "NCCL_LL128_NTHREADS": (160, 640), "NCCL_CGA_CLUSTER_SIZE": (0, 8),
    "NCCL_IB_QPS_PER_CONNECTION": (1, 128), "NCCL_SOCKET_NTHREADS": (0, 16), "NCCL_NSOCKS_PERTHREAD": (0, 64),
}  # fmt: skip
"""Variable -> smallest and largest value; NCCL clamps or ignores others."""

PARAMETERS: dict[str, Parameter] = {row.variable: row for row in CATALOGUE}
"""The rows of `ncclt.nccl.parameters`, by the variable's full name."""

_OTHERS = """
ALLGATHERV_ENABLE ALLOC_P2P_NET_LL_BUFFERS CE_CHUNK_SIZE CE_COLL_AG_MULTICAST_THRESHOLD CE_INTRA_GPU_MEMCPY_ENABLE
CFT_ENABLE CHECK_MODE CHECK_POINTERS COLLNET_NODE_THRESHOLD COMM_BLOCKING COMM_ID COMM_SHRINK_SHARE_RESOURCES
COMM_SPLIT_SHARE_RESOURCES CONF_FILE CONNECT_ROUND_MAX_PEERS DEBUG DEBUG_FILE DEBUG_LEVELS DEBUG_SUBSYS
DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS DEV_API_JIT DIAGNOSTICS_ECC_THRESHOLD DIAGNOSTICS_IB_BW_TIMEOUT
DISABLE_MEM_MANAGER DMABUF_ENABLE ELASTIC_BUFFER_REGISTER ENABLE_VERSION_CHECK ENQUEUE_REARCH_ENABLE ENV_PLUGIN
GDAKI_FORCE_MCST GDAKI_USE_RELIABLE_DB GDRCOPY_ENABLE GDRCOPY_FIFO_ENABLE GDRCOPY_FLUSH_ENABLE GDRCOPY_SYNC_ENABLE
GDRCOPY_USE_INTERNAL_DMABUF GIN_ENABLE GIN_ERROR_QUERY_SEC GIN_GDAKI_LAG_AWARE_DISABLE GIN_GDAKI_MAX_DEST_RD_ATOMIC
GIN_GDAKI_MAX_QP_RD_ATOMIC GIN_GDAKI_NIC_HANDLER GIN_GDAKI_QP_DEPTH GIN_IB_OOO_OPT GIN_IB_TC GIN_NCONNECTIONS GIN_PLUGIN
GIN_PLUGIN_REF_COUNT GIN_PROXY_NTHREADS GIN_PROXY_POLL_BATCH GIN_PROXY_QUEUE_SIZE GIN_TYPE GRAPH_DUMP_FILE
GRAPH_DUMP_FILE_RANK GRAPH_FILE GRAPH_HELPER_DISABLE GRAPH_STREAM_ORDERING GROUP_CUDA_STREAM
HIER_CE_COLL_AG_RAIL_RING_ENABLE HIER_CE_COLL_NUM_CTX HOSTID IBVERBS_LIB IB_ADDR_FAMILY IB_ADDR_RANGE IB_DATA_DIRECT
IB_DEVICE_PCI_ORDER IB_DISABLE IB_ECE_ENABLE IB_EVENT_BASED_LB IB_EVENT_BASED_LB_REMOTE IB_MERGE_VFS IB_MQP_RETRY_ALL
IB_MQP_RETRY_CNT IB_MQP_RETRY_SLEEP_MSEC IB_PKEY IB_PKEY_VALUE IB_PREPOST_RECEIVE_WORK_REQUESTS IB_QUERY_PORT_SPEED
IB_RAIL_POLICY IB_RECEIVER_SIDE_MATCHING_SCHEME IB_RESILIENCY_PORT_FAILOVER IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS
IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY IB_RESILIENCY_PORT_RECOVERY IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT
IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE
IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT
IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX IB_RESILIENCY_PORT_RECOVERY_START_DELAY IB_RETRY_CNT IB_RETURN_ASYNC_EVENTS
IB_ROCE_VERSION_NUM IB_ROUTABLE_FLID_GID_INDEX IB_SORT_MERGE_NICS IB_SUBNET_AWARE_ROUTING IB_SUBNET_PREFIX_LEN
IB_TIMEOUT IB_USE_INLINE IB_WARN_RAIL_LOCAL IB_WQE_LATENCY_REPORT IB_WQE_LATENCY_THRESHOLD_NS IGNORE_COLLNET_MISMATCH
IGNORE_NET_MISMATCH IPC_USE_ABSTRACT_SOCKET L1_SHARED_MEMORY_CARVEOUT LAUNCH_RACE_FATAL LEGACY_CUDA_REGISTER LL128_C2C
LSA_TEAM_SIZE MAX_NRINGS MEM_SYNC_DOMAIN MIN_NRINGS MNNVL_CLIQUE_ID MNNVL_CROSS_CLIQUE MNNVL_ENABLE MNNVL_RAIL_PER_HOST
MNNVL_SCATTER_NETS_ENABLE MNNVL_UUID MULTI_RANK_GPU_ENABLE MULTI_SEGMENT_REGISTER NET NETDEVS_POLICY NET_DISABLE_INTRA
NET_FORCE_FLUSH NET_FORCE_MERGE NET_GDR_C2C NET_MERGE_POLICY NET_OPTIONAL_RECV_COMPLETION NET_PLUGIN
NET_PLUGIN_REF_COUNT NET_SHARED_BUFFERS NET_SHARED_COMMS NO_CACHE NUM_RMA_CTX NUM_RMA_INT_CTX NVB_DISABLE NVB_PRECONNECT
NVLINK_UTIL_CENTRIC_SCHED_ENABLE NVLS_UB_SIZE NVTX_DISABLE OOB_NET_ENABLE OOB_NET_IFNAME P2P_EPOCH_ENABLE P2P_MAX_PEERS
P2P_PER_CHANNEL_REG_NET_BW PARAM_DUMP_ALL PROFILER_PLUGIN PROGRESS_COUNTERS PROGRESS_COUNTER_MONITOR_POLL_MS
PROGRESS_COUNTER_MONITOR_STALE_MS PROGRESS_COUNTER_MONITOR_STALE_WARN_SEC PROXY_CPUSET PROXY_DUMP_SIGNAL PXN_C2C
RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR REPORT_CONNECT_PROGRESS RMA_DISABLE RMA_EAGER_INIT RMA_IB_WR_BATCHSIZE
RMA_MULTI_CTX_THRESHOLD RMA_PLUGIN RMA_PLUGIN_REF_COUNT RMA_PROXY_DUMP_SIGNAL RMA_PROXY_QUEUE_SIZE RUN_DIAGNOSTICS
RUN_RAS_DIAGNOSTICS SET_CPU_STACK_SIZE SET_THREAD_NAME SHADOW_MEMPOOL_MAX_SIZE SINGLE_PROC_MEM_REG_ENABLE SOCKET_FAMILY
SOCKET_MAGIC SOCKET_POLL_TIMEOUT_MSEC SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC SYM_CE_THRESHOLD SYM_GIN_KERNELS_ENABLE
SYM_KERNEL SYM_NOWIN_ENABLE SYM_REUSE_SYSMEM_HANDLES SYM_RS_GIN_CHUNK_SIZE SYM_TMA_ENABLE TOPO_DUMP_FILE
TOPO_DUMP_FILE_RANK TOPO_FILE TOPO_SPLIT_MLOPART TUNER_PLUGIN UID_STAGGER_RATE UID_STAGGER_THRESHOLD
UNPACK_DOUBLE_NCHANNELS WARN_ENABLE_DEBUG_INFO WIN_STRIDE WORK_ARGS_BYTES
"""

OTHERS = frozenset(f"NCCL_{name}" for name in _OTHERS.split())
"""Read by the newest NCCL but neither tuned nor reported by ncclt."""

PLUGIN_PREFIXES = (
    "NCCL_TESTS_", "NCCL_INSPECTOR_", "NCCL_PROFILE_", "NCCL_TUNER_", "NCCL_GPUDIRECTTCPX_", "NCCL_FASTRAK_",
    "NCCL_FASTSOCKET_", "NCCL_SHARP_", "NCCL_IBEXT_", "NCCL_UCX_", "NCCL_SHIMNET_",
)  # fmt: skip
"""Read by nccl-tests and by plugins."""

OLD_PYTORCH = frozenset(
    {"NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING", "NCCL_TIMEOUT"}
)  # fmt: skip
"""Read by PyTorch up to 2.1 only."""

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
    # These were removed before 2.16; in which release is not known.
    "NCCL_CHECKS_DISABLE": ("2.16", "use NCCL_CHECK_MODE"),
    "NCCL_NRINGS": ("2.16", "use NCCL_MIN_CTAS and NCCL_MAX_CTAS"),
    "NCCL_RINGS": ("2.16", "use NCCL_GRAPH_FILE"),
    "NCCL_NCCL_ALLOC_P2P_NET_LL_BUFFERS": ("2.16.5", "use NCCL_ALLOC_P2P_NET_LL_BUFFERS"),
    "NCCL_AGG_CHANNEL_SIZE": ("2.20", "it has no successor"),
    "NCCL_CUDA_PATH": ("2.21", "it has no successor"),
    "NCCL_MNNVL": ("2.21", "use NCCL_MNNVL_ENABLE"),
    "NCCL_WORK_FIFO_DEPTH": ("2.22", "use NCCL_WORK_FIFO_BYTES"),
    "NCCL_GIN_COUNTER_POOL_SIZE": ("2.30", "it has no successor"),
    "NCCL_GIN_EXCLUSIVE_CONTEXTS": ("2.30", "it has no successor"),
    "NCCL_GIN_NCONTEXTS": ("2.30", "it has no successor"),
    "NCCL_GIN_SIGNAL_POOL_SIZE": ("2.30", "it has no successor"),
    "NCCL_CREATE_THREAD_CONTEXT": ("2.30.7", "it has no successor"),
    "NCCL_SHM_MEMCPY_MODE": ("2.30.7", "it has no successor"),
    "NCCL_SHM_USE_CUDA_MEMCPY": ("2.30.7", "it has no successor"),
    "NCCL_MLOPART_RDMA_ENABLE": ("2.32", "it has no successor"),
    "NCCL_NET_GDR_MLOPART": ("2.32", "it has no successor"),
    "NCCL_TOPO_SCATTER_START_NET": ("2.32", "it has no successor"),
}
"""Variable -> (first NCCL that does not read it, what there is instead)."""

REPLACED: dict[str, tuple[str, str]] = {
    "NCCL_MAX_NRINGS": ("2.5", "NCCL_MAX_CTAS"),
    "NCCL_MIN_NRINGS": ("2.5", "NCCL_MIN_CTAS"),
    "NCCL_MAX_NCHANNELS": ("2.17", "NCCL_MAX_CTAS"),
    "NCCL_MIN_NCHANNELS": ("2.17", "NCCL_MIN_CTAS"),
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
"""Variables that may differ between the ranks of a job."""

READ_BY_EVERY_RANK = frozenset(
    f"NCCL_{name}"
    for name in (
        "ALGO", "PROTO", "BUFFSIZE", "NTHREADS", "MIN_NCHANNELS", "MAX_NCHANNELS", "MIN_CTAS", "MAX_CTAS", "CROSS_NIC",
        "P2P_DISABLE", "P2P_LEVEL", "SHM_DISABLE", "NVLS_ENABLE", "COLLNET_ENABLE",
    )
)  # fmt: skip
"""Variables that each rank reads at its start: not set for a rank that does not log one (graph/tuning.cc, init.cc)."""

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
"""Variables that a site rightly sets permanently (user guide, "System configuration")."""


def is_known(name: str) -> bool:
    """Return True if NCCL, a plugin, PyTorch or a build reads a variable of this name."""
    tables = (PARAMETERS, OTHERS, OLD_PYTORCH, BUILDS, REMOVED, REPLACED)
    return any(name in table for table in tables) or name.startswith(PLUGIN_PREFIXES)


def known_names() -> list[str]:
    """Return the names that NCCL reads, for looking for a similar one."""
    return sorted({*PARAMETERS, *OTHERS})


def is_number(name: str) -> bool:
    """Return True if NCCL reads a variable as a number."""
    row = PARAMETERS.get(name)
    if name in _FURTHER or row is None:
        return name in _FURTHER
    return name not in _ALSO_WORDS and row.values is not None and all(isinstance(v, int) for v in row.values[:8])


def as_nccl_reads(text: str) -> tuple[int, bool]:
    """Return the number that NCCL gets from a text, and whether that is all the text says.

    It is strtoll with base 0 (ncclLoadParam in misc/param.cc).

    >>> as_nccl_reads("8M")
    (8, False)
    """
    match = _NUMBER.match(text)
    if match is None:
        return 0, False
    digits = match[2].lower()
    octal = len(digits) > 1 and digits[0] == "0" and digits[1] != "x"
    value = int(digits, 8) if octal else int(digits, 0)
    rest = text[match.end() :]
    # NCCL drops a comment after a number, as was intended.
    whole = re.fullmatch(r"\s*|\s+#.*", rest) is not None
    return (-value if match[1] == "-" else value), whole and not octal
