"""Every rule on a set-up that breaks it, and on one beside it that does not."""

import io
import re

from read_log import read_log

from ncclt.core.cluster import Cluster
from ncclt.core.nccl_version import NcclVersion
from ncclt.health.doctor import RULES, Facts, Severity, diagnose
from ncclt.health.doctor.adapters import Adapter
from ncclt.health.doctor.conf_file import parse_conf_file
from ncclt.health.doctor.gpu_report import GpuReport, GpuState
from ncclt.health.doctor.matrix import parse_matrix
from ncclt.health.doctor.nccl_topology import parse_nccl_topology
from ncclt.nccl.log.evidence import Evidence, Variable


def matrix(pair="NV12", nic="PIX", *, gpus=2, numa=()):
    rows = [["X" if i == j else pair for j in range(gpus)] + [nic] for i in range(gpus)]
    return (_matrix(rows, ["mlx5_0"], numa),)


def uneven(word):
    """Four GPUs, the first of which reaches the others by another word."""
    rows = [[("X" if i == j else word if 0 in (i, j) else "NV12") for j in range(4)] for i in range(4)]
    return (_matrix(rows, []),)


def _matrix(rows, nics, numa=()):
    head = "\t".join(["", *(f"GPU{i}" for i in range(len(rows))), *nics, "CPU Affinity", "NUMA Affinity"])
    tails = [["0-7", str(numa[i])] if numa else ["0-7"] for i in range(len(rows))]
    return parse_matrix([head, *("\t".join([f"GPU{i}", *rows[i], *tails[i]]) for i in range(len(rows)))], "topo.txt")


def topology(gpu):
    """One GPU whose PCIe link has some attributes, below a switch and beside a NIC."""
    text = f"""<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel">
      <pci busid="0000:15:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
        <pci busid="0000:18:00.0" class="0x030200" {gpu}><gpu dev="0" sm="90" rank="0" gdr="1"/></pci>
        <pci busid="0000:1a:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
          <nic><net name="mlx5_0" dev="0" speed="400000" port="1" gdr="1"/></nic></pci></pci></cpu></system>"""
    return (parse_nccl_topology(io.BytesIO(text.encode()), "topo.xml"),)


def log(*texts):
    """Each text is a sentence of process 1, or of that whose number stands before it: `2> Using network IB`."""
    lines = []
    for text in texts:
        pid, sentence = re.fullmatch(r"(?:(\d)> )?(.*)", text).groups()
        level = "" if sentence.startswith(("NCCL WARN", "NCCL ATTN")) else "NCCL INFO "
        lines.append(f"node{pid or 1}:{pid or 1}:7 [0] {level}{sentence}")
    return read_log(*lines)


def start(rank=0, state="START", ranks=2):
    return f"ncclCommInitRank comm 0xa{rank} rank {rank} nranks {ranks} cudaDev 0 busId 7000 commId 0xc - Init {state}"


def job(first, second, state="START"):
    """Two processes of one communicator that each say something."""
    return log(f"1> {first}", f"1> {start(0, state)}", f"2> {second}", f"2> {start(1, state)}")


def shape(nodes=2):
    return f"comm 0xa0 rank 0 nRanks 2 nNodes {nodes} localRanks 1 localRank 0 MNNVL 0"


def rccl(version, *texts):
    """The log of RCCL, which writes its versions on lines of their own, as of its sources and of public logs."""
    return log(f"RCCL version : {version}-HEAD:29e1567", *texts)


INSTALLED = "/opt/rocm/share/rccl/tuner/rccl_tuner_gfx950.csv"
OWN_TABLE = f"TUNER/CsvTuner: Loaded 42 tuning configurations from {INSTALLED}"
MSCCL = "MSCCL: Initialization finished, localSize 32768"
WARP_SPEED = "WarpSpeed enabled: warpSpeedChannelMultiplier 4, maxNchannels 448, nc 224"


def ring(channels, path="PIX"):
    return f"Pattern 4, crossNic 0, nChannels {channels}, bw 20.0/20.0, type NVL/{path}, sameChannels 1"


def env(*texts):
    pairs = [text.split("=", 1) for text in texts]
    return tuple(Variable(name=n, value=v, evidence=Evidence(source="environment", text=f"{n}={v}")) for n, v in pairs)


def conf(text, source="/etc/nccl.conf"):
    return (parse_conf_file(text.splitlines(), source),)


def gpus(**changes):
    states = [
        GpuState(**({"index": i, "bus_id": f"0:{i}", "model": "NVIDIA A100-SXM4-80GB"} | changes)) for i in (0, 1)
    ]
    return (GpuReport(source="gpus.xml", gpus=tuple(states)),)


def cluster(**changes):
    fields = {
        "name": "named",
        "nodes": 2,
        "gpus_per_node": 2,
        "gpu": "A100-SXM4-80GB",
        "compute_capability": 80,
        "link_class": "nvlink",
        "link_gbps": 300.0,
        "fabric": "infiniband",
        "nics_per_node": 1,
        "nic_gbps": 25.0,
        "nccl_version": "2.30.7",
    }
    return Cluster(**(fields | changes))


MLX = (Adapter(name="mlx5_0", link_layer="InfiniBand", gbps=25.0),)
EFA = (Adapter(name="rdmap16s27"),)
DOWN = (Adapter(name="mlx5_1", active=False),)
P2P = "Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM"
TUNER_SET = ("NCCL_TUNER_PLUGIN set by environment to /site/x.so", "TUNER/Plugin: Plugin name set by env to /site/x.so")
HYPERVISOR = Evidence(source="/proc/cpuinfo", text="the CPU has the flag `hypervisor`")
SHM = "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"
SOCKET = "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0"
IB = "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0"
NO_PATH = "NCCL WARN Could not find a path for pattern 4, falling back to simple order"
GAVE_UP = "Pattern 1, crossNic 0, nChannels 1, bw 0.100000/0.100000, type SYS/SYS, sameChannels 1"
UNUSED = "Pattern 3, crossNic 0, nChannels 0, bw 0.000000/0.000000, type LOC/PIX, sameChannels 1"
NO_GDR = "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"
NO_NVLS = "NVLS multicast support is not available on dev 0"
TABLE = ("  Algorithm | Ring |", "    AllReduce | 1.0/ 1.0 | 2.0/ 5.0 | 3.0/ 9.0 |")
NO_LL128 = ("  Algorithm | Ring |", "    AllReduce | 1.0/ 1.0 | 2.0/ 0.0 | 3.0/ 9.0 |")
H100 = gpus(model="NVIDIA H100 80GB HBM3")
V100 = gpus(model="Tesla V100-SXM2-32GB")
LIBFABRIC = "NET/Plugin: Loaded net plugin Libfabric (v8)"
ONE, TWO = "1 coll channels, 2 p2p channels", "2 coll channels, 2 p2p channels"
VERSION = "NCCL version 2.28.9+cuda13.0"

CASES = [  # rule, a set-up that breaks it, one beside it that does not
    ("NET001", {"log": log(SOCKET), "matrices": matrix()}, {"log": log(SOCKET)}),
    ("NET001", {"log": log(shape(), "Using network Socket"), "adapters": MLX},
     {"log": log(shape(1), "Using network Socket"), "adapters": MLX}),
    ("NET001", {"environment": env("NCCL_IB_DISABLE=1"), "cluster": cluster()},
     {"environment": env("NCCL_IB_DISABLE=1"), "cluster": cluster(fabric="ethernet")}),
    ("NET001", {"environment": env("NCCL_NET=Socket"), "adapters": MLX},
     {"environment": env("NCCL_NET=Socket"), "adapters": DOWN}),
    ("NET001", {"environment": env("NCCL_IB_DISABLE=1"), "adapters": MLX},
     {"environment": env("NCCL_IB_DISABLE=1"), "adapters": EFA}),
    ("NET002", {"log": log(shape(), IB), "matrices": matrix()},
     {"log": log(shape(), IB + "/GDRDMA"), "matrices": matrix()}),
    ("NET002", {"log": log(shape(), IB, ring(2))}, {"log": log(shape(), IB), "matrices": matrix(nic="SYS")}),
    ("NET002", {"log": log(NO_GDR)}, {"log": log(NO_GDR), "gpu_reports": gpus(model="NVIDIA GB10")}),
    ("NET003", {"adapters": MLX + DOWN}, {"adapters": MLX}),
    ("TOP001", {"log": log(NO_PATH)}, {"log": log(ring(4))}),
    ("TOP001", {"log": log(GAVE_UP)}, {"log": log(UNUSED)}),
    ("TOP002", {"log": log("Topology detection : could not read /sys/a/max_link_speed, ignoring")}, {"log": log(ONE)}),
    ("TOP003", {"log": log(SHM), "matrices": matrix()}, {"log": log(SHM), "matrices": matrix("SYS")}),
    ("TOP003", {"log": log(ring(2), SHM)}, {"log": log(ring(2), "Channel 00 : 0[0] -> 1[1] via P2P/IPC")}),
    ("TOP004", {"log": log(SHM), "matrices": matrix("PIX")}, {"log": log(SHM), "matrices": matrix("NODE")}),
    ("TOP004", {"log": log("Could not enable P2P between dev 1(=81000) and dev 0(=41000)")}, {"log": log(SHM)}),
    ("TOP005", {"log": log(start(), ONE)}, {"log": log(start(), TWO)}),
    ("TOP005", {"log": log(ONE)}, {"log": log(start(ranks=1), ONE)}),
    ("TOP006", {"log": log(start(), shape(), ring(2), f"2> {start(1)}", f"2> {shape()}", f"2> {ring(4)}")},
     {"log": log(start(), shape(), ring(2), f"2> {start(1)}", f"2> {shape()}", f"2> {ring(2)}")}),
    ("TOP007", {"matrices": matrix(nic="SYS")}, {"matrices": matrix(nic="NODE")}),
    ("TOP008", {"matrices": uneven("NV10")}, {"matrices": uneven("NV12")}),
    ("TOP009", {"log": log(NO_NVLS), "matrices": matrix("NV18", gpus=4), "gpu_reports": H100},
     {"log": log(NO_NVLS), "matrices": matrix("SYS", gpus=4), "gpu_reports": H100}),
    ("TOP010", {"log": log(SHM), "gpu_reports": H100}, {"log": log(P2P), "gpu_reports": H100}),
    ("TOP010", {"log": log(SHM)}, {"log": log(SHM, P2P)}),
    ("TOP010", {"log": log(SHM), "gpu_reports": V100}, {"log": log(SHM, P2P), "gpu_reports": V100}),
    ("TOP010", {"log": log(SHM), "matrices": matrix("SYS", gpus=8)}, {"log": log(P2P), "matrices": matrix("SYS")}),
    ("TOP010", {"log": log(ring(2).replace("NVL/", "PXB/"), SHM)}, {"log": log(ring(2), SHM)}),
    ("TOP010", {"log": log(SHM), "gpu_reports": gpus(model="NVIDIA GeForce RTX 4090")}, {"log": log(SOCKET)}),
    ("TOP011", {"log": log("+ PCI[0.2] - PCI/0-41000 (0)", "+ PCI[48.0] - GPU/0-43000 (0)")},
     {"log": log("+ PCI[24.0] - GPU/0-41000 (0)", "+ PCI[48.0] - GPU/0-43000 (0)", "+ PCI[6.0] - NIC/0-45000")}),
    ("TOP011", {"log": log("+ PCI[3.0] - GPU/0-41000 (0)", "+ PCI[48.0] - GPU/0-43000 (0)")},
     {"log": log("+ NET[0.1] - NET/0-0 (0/1/0.1)")}),
    ("TOP011", {"log": log("+ NVL[0.0] - NVS/0-0")}, {"log": log("+ NVL[370.8] - NVS/0-0")}),
    ("TOP011", {"topologies": topology(gpu='link_speed="2.5 GT/s PCIe" link_width="1"')},
     {"topologies": topology(gpu='link_speed="8.0 GT/s PCIe" link_width="16"')}),
    ("TOP011", {"topologies": topology(gpu='link_speed="Unknown speed" link_width="255"')},
     {"topologies": topology(gpu='link_speed="32.0 GT/s PCIe" link_width="16"')}),
    ("TOP012", {"matrices": matrix("SYS", gpus=8)}, {"matrices": matrix("SYS", "PHB")}),
    ("TOP012", {"matrices": matrix("SYS", gpus=4, numa=(0, 0, 1, 1))},
     {"matrices": matrix("SYS", gpus=4, numa=(0, 1, 2, 3))}),
    ("TOP012", {"matrices": matrix("PHB"), "virtual": HYPERVISOR}, {"matrices": matrix("PHB")}),
    ("TOP012", {"matrices": matrix("PHB"), "gpu_reports": gpus(virtualization="Pass-Through")},
     {"matrices": matrix("PHB"), "virtual": HYPERVISOR, "environment": env("NCCL_TOPO_FILE=/site/topo.xml")}),
    ("TOP012", {"matrices": matrix("NV12", "PHB"), "virtual": HYPERVISOR},
     {"matrices": matrix("NV12", "PXB"), "virtual": HYPERVISOR}),
    ("TOP013", {"matrices": matrix("SYS", gpus=4, numa=(0, 1, 2, 3))},
     {"matrices": matrix("SYS", gpus=4, numa=(0, 0, 1, 1))}),
    ("PLG001", {"log": log(*TUNER_SET, "TUNER/Plugin: Could not find: /site/x.so. Using internal tuner plugin.")},
     {"log": log("TUNER/Plugin: Could not find: libnccl-tuner.so. Using internal tuner plugin.")}),
    ("PLG001", {"log": log(*TUNER_SET, "TUNER/Plugin: Failed to find ncclTunerPlugin_v2, using internal tuner")},
     {"log": log(*TUNER_SET, "TUNER/Plugin: Failed to find ncclTunerPlugin_v4 symbol.",
     "TUNER/Plugin: Using tuner plugin site")}),
    ("PLG001", {"log": log("NCCL_NET_PLUGIN set by environment to ofi",
     "NET/Plugin: libnccl-net-ofi.so: libfabric.so.1: cannot open shared object file")},
     {"log": log("NCCL_NET_PLUGIN set by environment to ofi", "NET/Plugin: Loaded net plugin Libfabric (v8)",
     "NET/Plugin: Failed to find ncclCollNetPlugin_v8 symbol.")}),
    ("PLG001",
     {"log": log("NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared"),
     "environment": env("NCCL_NET_PLUGIN=ofi")},
     {"log": log("NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared")}),
    ("PLG001", {"log": log(*TUNER_SET, "TUNER/Plugin: Using internal tuner plugin.")}, {"log": log(*TUNER_SET)}),
    ("PLG001", {"log": log("NCCL_NET_PLUGIN set by environment to ofi", LIBFABRIC, "Using network Socket")},
     {"log": log("NCCL_NET_PLUGIN set by environment to ofi", LIBFABRIC, "Using network Libfabric")}),
    ("PLG001", {"log": log("PROFILER/Plugin: Plugin name set by env to inspector",
     "PROFILER/Plugin: Could not find: inspector libnccl-profiler-inspector.so.")},
     {"log": log("PROFILER/Plugin: Plugin name set by env to none",
     "PROFILER/Plugin: Could not find: libnccl-profiler.so.")}),
    ("PLG002", {"log": log('NET/OFI Setting NCCL_PROTO to "simple"')},
     {"log": log("Setting affinity for GPU 0 to ff")}),
    ("PLG002", {"log": log("NET/OFI Setting NCCL_TOPO_FILE environment variable to /opt/p5-topo.xml")},
     {"log": log("NCCL_TOPO_FILE set by environment to /opt/p5-topo.xml")}),
    ("NET004", {"log": log(shape(), "NET/Socket : Using [0]br-7a1c:172.18.0.1<0> [1]eth0:10.0.0.1<0>")},
     {"log": log(shape(), "NET/Socket : Using [0]bond0:10.0.0.1<0> [1]eth0:10.0.0.1<0>")}),
    ("NET004", {"log": log("Bootstrap : Using docker0:172.17.0.1<0>")},
     {"log": log("Bootstrap: Using ib0:10.0.0.1<0>")}),
    ("NET004", {"environment": env("NCCL_SOCKET_IFNAME==docker0")},
     {"environment": env("NCCL_SOCKET_IFNAME=^docker,lo")}),
    ("RNK001", {"log": job("NCCL version 2.27.3", "NCCL version 2.27.5")},
     {"log": log("1> NCCL version 2.27.3", f"1> {start(0)}", "2> NCCL version 2.27.5")}),
    ("RNK001", {"log": log("1> NCCL version 2.27.3", "2> NCCL version 2.27.5")},
     {"log": job("NCCL version 2.27.3", "NCCL version 2.27.3")}),
    ("RNK002", {"log": job("NCCL_BUFFSIZE set by environment to 1.", "NCCL_BUFFSIZE set by environment to 2.")},
     {"log": job("NCCL_SOCKET_IFNAME set by environment to a", "NCCL_SOCKET_IFNAME set by environment to b")}),
    ("RNK002", {"log": job("NCCL_ALGO set by environment to Ring", "Using network IB", "COMPLETE")},
     {"log": job("NCCL_ALGO set by environment to Ring", "Using network IB", "START")}),
    ("RNK003", {"log": job("Using network IB", "Using network Socket")},
     {"log": job("Using network IB", "Using network IB")}),
    ("RNK004", {"log": job("NET/IB : Using [0]mlx5_0:1/IB", "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB")},
     {"log": job("NET/IB : Using [0]mlx5_0:1/IB", "NET/IB : Using [0]mlx5_2:1/IB")}),
    ("RNK005", {"log": job("cudaDriverVersion 12080", "cudaDriverVersion 13000")},
     {"log": job("cudaDriverVersion 12080", "cudaDriverVersion 12080")}),
    ("ENV001", {"environment": env("NCCL_PROTO=^LL")}, {"environment": env("NCCL_PROTO=^LL128")}),
    ("ENV002", {"environment": env("NCCL_GDR_FLUSH_DISABLE=1")}, {"environment": env("NCCL_GDR_FLUSH_DISABLE=0")}),
    ("ENV003", {"environment": env("NCCL_BUFFSIZE=8M")}, {"environment": env("NCCL_BUFFSIZE=8388608")}),
    ("ENV004", {"environment": env("NCCL_ALGO=Tree")}, {"environment": env("NCCL_TUNER_PLUGIN=ncclt")}),
    ("ENV004", {"environment": env("NCCL_PROTO=Simple")}, {"environment": env("NCCL_PROTO=LL128")}),
    ("ENV005", {"environment": env("NCCL_PAT_ENABLE=1")}, {"environment": env("NCCL_PAT_ENABLE=2")}),
    ("ENV005", {"environment": env("NCCL_NCHANNELS_PER_NET_PEER=32")},
     {"environment": env("NCCL_NCHANNELS_PER_NET_PEER=16")}),
    ("ENV006", {"environment": env("NCCL_P2P_DISABLE=1")}, {"environment": env("NCCL_P2P_DISABLE=0")}),
    ("ENV006", {"environment": env("NCCL_NET_GDR_LEVEL=LOC")}, {"environment": env("NCCL_NET_GDR_LEVEL=PHB")}),
    ("ENV007", {"environment": env("NCCL_MAX_CTAS=128")}, {"environment": env("NCCL_MAX_CTAS=32")}),
    ("ENV007", {"environment": env("NCCL_SOCKET_NTHREADS=16", "NCCL_NSOCKS_PERTHREAD=8")},
     {"environment": env("NCCL_SOCKET_NTHREADS=8", "NCCL_NSOCKS_PERTHREAD=8")}),
    ("ENV008", {"environment": env("NCCL_TREE_THRESHOLD=0")}, {"environment": env("NCCL_CROSS_NIC=1")}),
    ("ENV008", {"environment": env("NCCL_ASYNC_ERROR_HANDLING=1")}, {"environment": env("NCCL_VERSION=2.21.5")}),
    ("ENV008", {"environment": env("NCCL_PAT_ENABLE=0"), "version": NcclVersion(2, 21, 5)},
     {"environment": env("NCCL_PAT_ENABLE=0"), "version": NcclVersion(2, 23, 4)}),
    ("ENV008", {"environment": env("NCCL_SHM_USE_CUDA_MEMCPY=1"), "version": NcclVersion(2, 30, 7)},
     {"environment": env("NCCL_SHM_USE_CUDA_MEMCPY=1"), "version": NcclVersion(2, 30, 4)}),
    ("ENV008", {"environment": env("NCCL_NRINGS=4")}, {"environment": env("NCCL_SHM_USE_CUDA_MEMCPY=1")}),
    ("ENV009", {"environment": env("NCCL_BUFFSIZE=8388608")}, {"environment": env("NCCL_IB_HCA=mlx5")}),
    ("ENV010", {"environment": env("NCCL_SOCKET_IFNAMES=eth0")}, {"environment": env("NCCL_TESTS_DEVICE=0")}),
    ("ENV010", {"environment": env("NCCL_MNNVL_CLIQUE_SIZE=4")}, {"environment": env("NCCL_IB_PKEY_VALUE=1")}),
    ("ENV013", {"environment": env("NCCL_P2P_NET_CHUNKSIZE=2097152", "NCCL_BUFFSIZE=8388608")},
     {"environment": env("NCCL_P2P_NET_CHUNKSIZE=1048576", "NCCL_BUFFSIZE=8388608")}),
    ("ENV013", {"log": log(shape(), "P2P Chunksize set to 131072"),
     "environment": env("NCCL_P2P_NET_CHUNKSIZE=524288")},
     {"log": log(shape(), "P2P Chunksize set to 524288"), "environment": env("NCCL_P2P_NET_CHUNKSIZE=524288")}),
    ("ENV011", {"environment": env("NCCL_MAX_NCHANNELS=4")}, {"environment": env("NCCL_MAX_CTAS=4")}),
    ("ENV012", {"environment": env("NCCL_DEBUG=INFO")}, {"environment": env("NCCL_DEBUG=WARN")}),
    ("CNF001", {"conf_files": conf("NCCL_ALGO = Ring")}, {"conf_files": conf("NCCL_IB_HCA=mlx5")}),
    ("CNF002", {"conf_files": conf("NCCL_IB_HCA=mlx5"), "environment": env("NCCL_IB_HCA=mlx4")},
     {"conf_files": conf("NCCL_IB_HCA=mlx5"), "environment": env("NCCL_IB_HCA=mlx5")}),
    ("CNF002", {"conf_files": conf("NCCL_IB_SL=1", "~/.nccl.conf") + conf("NCCL_IB_SL=2")},
     {"conf_files": conf("NCCL_IB_SL=1", "~/.nccl.conf") + conf("NCCL_IB_TC=2")}),
    ("CNF003", {"conf_files": conf("NCCL_ALGO=Ring"), "recommended": (("NCCL_ALGO", "Tree"),)},
     {"conf_files": conf("NCCL_ALGO=Ring"), "recommended": (("NCCL_ALGO", "Ring"),)}),
    ("CNF003", {"conf_files": conf("NCCL_ALGO=Ring"), "recommended": (("NCCL_TUNER_PLUGIN", "ncclt"),)},
     {"conf_files": conf("NCCL_IB_SL=1"), "recommended": (("NCCL_TUNER_PLUGIN", "ncclt"),)}),
    ("CNF004", {"file_problems": (Evidence(source="environment", text="NCCL_CONF_FILE=~/x"),)}, {}),
    ("CNF004", {"log": log("Could not open XML topology file /site/topo.xml : No such file or directory")},
     {"log": log("Could not open XML topology file /var/run/nvidia-topologyd/virtualTopology.xml : No such file")}),
    ("CNF005", {"conf_files": conf("NCCL_IB_SL=1")}, {"conf_files": conf("# nothing")}),
    ("VER001", {"log": log("NCCL version 2.29.2+cuda13.1")}, {"log": log("NCCL version 2.29.3+cuda13.1")}),
    ("VER002", {"log": log(VERSION, shape(), ring(4, "P2C"), *TABLE)},
     {"log": log(VERSION, shape(), ring(4, "P2C"), *NO_LL128)}),
    ("VER003", {"log": log(VERSION), "version": NcclVersion(2, 27, 3)},
     {"log": log(VERSION), "version": NcclVersion(2, 28, 9)}),
    ("CLU001", {"gpu_reports": H100, "cluster": cluster()}, {"gpu_reports": gpus(), "cluster": cluster()}),
    ("CLU001", {"matrices": matrix(), "cluster": cluster(gpus_per_node=4)},
     {"matrices": matrix(), "cluster": cluster(topology_hash=matrix()[0].topology_hash())}),
    ("CLU001", {"matrices": matrix(), "cluster": cluster(topology_hash="0123456789ab")},
     {"matrices": matrix(gpus=4), "cluster": cluster()}),
    ("LOG001", {"log": log("NCCL WARN Cuda failure 'out of memory'")}, {"log": log(ONE)}),
    ("LOG001", {"log": log("NCCL WARN RMA/Socket : no peer")},
     {"log": log("NCCL WARN RMA/Socket : rma_socket requires GDRCopy; and GDR Copy is not available")}),
    ("LOG001", {"log": log(shape(2), "NCCL ATTN Failed to initialize NET plugin IB")},
     {"log": log(shape(1), "NCCL ATTN Failed to initialize NET plugin IB")}),
    ("LOG002", {"log": log("AllReduce: opCount 1 sendbuff 0x1")}, {"log": log(ONE)}),
    ("GPU001", {"gpu_reports": gpus() + H100}, {"gpu_reports": gpus() + gpus()}),
    ("GPU002", {"gpu_reports": gpus(uncorrected_errors=1)}, {"gpu_reports": gpus(remap_pending=True)}),
    ("GPU003", {"gpu_reports": gpus(slowdowns=("hw_slowdown",))}, {"gpu_reports": gpus()}),
    ("GPU004", {"gpu_reports": gpus(link_width=8, max_link_width=16)},
     {"gpu_reports": gpus(idle=True, link_gen=1, max_link_gen=4)}),
    ("GPU004", {"gpu_reports": gpus(idle=False, link_gen=3, max_link_gen=4)},
     {"gpu_reports": gpus(link_width=16, max_link_width=16)}),
    ("RCC001", {"log": rccl("2.30.4", OWN_TABLE), "environment": env("NCCL_TUNER_CONFIG_FILE=/no/such.csv")},
     {"log": rccl("2.30.4", OWN_TABLE), "environment": env(f"NCCL_TUNER_CONFIG_FILE={INSTALLED}")}),
    ("RCC001", {"log": rccl("2.27.7"), "environment": env("NCCL_TUNER_CONFIG_FILE=/t.csv")},
     {"log": rccl("2.27.7"), "environment": env("NCCL_TUNER_CONFIG_FILE=/t.csv", "NCCL_TUNER_PLUGIN=/example.so")}),
    ("RCC001", {"log": rccl("2.28.3", "ROCm version : 7.12.0-1"),
     "environment": env("NCCL_TUNER_CONFIG_FILE=/t.csv")},
     {"log": rccl("2.28.3", "ROCm version : 7.13.0-1"), "environment": env("NCCL_TUNER_CONFIG_FILE=/t.csv")}),
    ("RCC001", {"log": rccl("2.28.3", "ROCm version : 7.9.0-1"), "environment": env("NCCL_TUNER_CONFIG_FILE=/t.csv")},
     {"log": rccl("2.28.3"), "environment": env("NCCL_TUNER_CONFIG_FILE=/t.csv")}),
    ("RCC002", {"log": rccl("2.27.7", shape()), "environment": env("NCCL_MAX_NCHANNELS=112")},
     {"log": rccl("2.27.7", shape()), "environment": env("NCCL_MAX_NCHANNELS=64")}),
    ("RCC002", {"log": rccl("2.27.7", shape(nodes=1)), "environment": env("NCCL_MIN_NCHANNELS=112")},
     {"log": log(shape(nodes=1)), "environment": env("NCCL_MIN_NCHANNELS=112")}),
    ("RCC003", {"log": rccl("2.28.3", shape(), "48 coll channels, 64 p2p channels, 2 p2p channels per peer")},
     {"log": rccl("2.28.3", shape(nodes=1), "48 coll channels, 64 p2p channels, 2 p2p channels per peer")}),
    ("RCC004", {"log": rccl("2.27.7", MSCCL), "environment": env("NCCL_TUNER_PLUGIN=/example.so")},
     {"log": rccl("2.27.7"), "environment": env("NCCL_TUNER_PLUGIN=/example.so", "RCCL_MSCCL_ENABLE=0")}),
    ("RCC005", {"log": rccl("2.30.4"), "environment": env("NCCL_TUNER_PLUGIN=/example.so")},
     {"log": rccl("2.27.7"), "environment": env("NCCL_TUNER_PLUGIN=/example.so")}),
    ("RCC005", {"log": rccl("2.30.4"), "environment": env("NCCL_TUNER_PLUGIN=x")}, {"log": rccl("2.30.4", OWN_TABLE)}),
    ("RCC006", {"log": rccl("2.30.4", "RCCL WarpSpeed auto-disabled: 448 channels exceeds max 256 supported")},
     {"log": rccl("2.30.4", WARP_SPEED)}),
    ("RCC006", {"log": rccl("2.28.3", WARP_SPEED), "environment": env("NCCL_MAX_NCHANNELS=112")},
     {"log": rccl("2.28.3", WARP_SPEED), "environment": env("NCCL_MAX_NCHANNELS=56")}),
    ("RCC006", {"environment": env("RCCL_WARP_SPEED_CU_COUNT=28", "NCCL_MIN_NCHANNELS=32")},
     {"environment": env("RCCL_WARP_SPEED_CU_COUNT=28")}),
    ("ENV007", {"environment": env("NCCL_MAX_NCHANNELS=112")},
     {"environment": env("NCCL_MAX_NCHANNELS=112"), "log": rccl("2.27.7")}),
    ("GPU005", {"gpu_reports": gpus(mig=True)}, {"gpu_reports": gpus()}),
    ("GPU006", {"gpu_reports": gpus(fabric_state="In Progress")}, {"gpu_reports": gpus(fabric_state="Completed")}),
    ("GPU007", {"gpu_reports": gpus(idle=True, link_gen=1, max_link_gen=4)}, {"gpu_reports": gpus(idle=True)}),
    ("GPU008", {"gpu_reports": gpus(remap_pending=True)}, {"gpu_reports": gpus()}),
    ("GPU009", {"gpu_reports": gpus(persistence=False)}, {"gpu_reports": gpus(persistence=None)}),
]  # fmt: skip


def test_rule_finds_what_is_broken_and_spares_what_is_not(subtests):
    for number, (rule, broken, sound) in enumerate(CASES):
        with subtests.test(f"{number}-{rule}"):
            found = [finding for finding in diagnose(Facts(**broken)).findings if finding.id == rule]
            assert found
            assert all(finding.what and finding.fix and finding.why and finding.source for finding in found)
            assert rule not in {finding.id for finding in diagnose(Facts(**sound)).findings}


def test_every_rule_is_tried():
    assert sorted(rule.id for rule in RULES) == sorted({rule for rule, _, _ in CASES})


def test_only_corruption_and_broken_set_ups_stop_a_study():
    """A new rule of severity error must be put here with a reason in mind."""
    errors = {rule.id for rule in RULES if rule.severity is Severity.ERROR}

    assert errors == {"NET001", "TOP001", "RNK001", "RNK002", "RNK003", "ENV001", "ENV002", "ENV003", "VER002"}


def test_versions_of_rccl_are_read_without_a_prefix():
    """They are several lines of one message; the version of NCCL stays unknown, and its known issues do not count."""
    first = "node [0] NCCL INFO RCCL version : 2.28.3-HEAD:29e1567"
    facts = Facts(log=read_log(first, "HIP version  : 7.2", "ROCm version : 7.12.4-93-97"))

    assert {name: said.value for name, said in facts.log.rccl.items()} == {"version": "2.28.3", "rocm": "7.12"}
    assert (facts.nccl, str(facts.rccl)) == (None, "2.28.3")
    assert facts.to_document()["rccl_version"] == "2.28.3"


def test_findings_stand_the_worst_first():
    assert (diagnose(Facts()).findings, diagnose(Facts()).verdict) == ((), "incomplete")
    diagnosis = diagnose(Facts(environment=env("NCCL_DEBUG=INFO", "NCCL_BUFFSIZE=8388608", "NCCL_PROTO=LL128")))

    assert [finding.severity.value for finding in diagnosis.findings] == ["error", "warning", "info"]
    assert [finding.id for finding in diagnosis.blocking] == ["ENV001"]
    assert diagnosis.verdict == "broken"


def test_advice_names_the_variable_that_is_at_fault():
    diagnosis = diagnose(Facts(log=log(start(), ONE), environment=env("NCCL_MAX_NCHANNELS=1")))

    (one_channel,) = [finding for finding in diagnosis.findings if finding.id == "TOP005"]
    assert one_channel.fix == "unset NCCL_MAX_NCHANNELS=1 (environment)"


def test_advice_says_the_number_that_was_meant(subtests):
    for text, advice in [
        ("8M", "8388608"),
        ("64KiB", "65536"),
        ('"4"', "4"),
        ("true", "1"),
        ("no", "0"),
        ("010", "10"),
    ]:
        with subtests.test(text=text, advice=advice):
            (finding,) = diagnose(Facts(environment=env(f"NCCL_IB_TIMEOUT={text}"))).blocking

            assert finding.fix.endswith(f"for example {advice}")


def test_host_memory_is_normal_for_boards_without_peer_to_peer():
    """The same log is a warning on H100 and a remark on GeForce, which says so."""
    found = {}
    for model in ("NVIDIA GeForce RTX 4090", "NVIDIA H100 80GB HBM3", "NVIDIA L40S"):
        facts = Facts(log=log(SHM), gpu_reports=gpus(model=model))
        (found[model],) = [finding for finding in diagnose(facts).findings if finding.id == "TOP010"]
    geforce, h100, l40s = found.values()

    assert [finding.severity for finding in (geforce, h100, l40s)] == ["info", "warning", "warning"]
    assert "which is normal for NVIDIA GeForce RTX 4090" in geforce.what
    assert "although every NVIDIA H100 80GB HBM3 has NVLink" in h100.what


def test_variable_set_inside_the_process_is_not_taken_for_the_jobs_own():
    """NCCL logs it as it logs inherited ones; nobody can unset it in the job's environment."""
    facts = Facts(log=log(start(), 'NET/OFI Setting NCCL_PROTO to "simple"', "NCCL_PROTO set by environment to simple"))

    assert [finding.id for finding in diagnose(facts).findings] == ["PLG002"]
    assert facts.variables() == ()


def test_documents_say_everything():
    """What --json prints holds facts, findings and evidence."""
    document = diagnose(
        Facts(
            log=log(start(), ONE, SHM, *TABLE),
            matrices=matrix(),
            gpu_reports=gpus(),
            environment=env("NCCL_DEBUG=INFO"),
        )
    ).to_document()

    assert (document["schema"], document["verdict"]) == (1, "degraded")
    assert document["facts"]["matrices"][0]["links"]["GPU0"] == {"GPU0": "X", "GPU1": "NV12", "mlx5_0": "PIX"}
    assert document["facts"]["log"]["transports"] == {"SHM": 1}
    assert document["facts"]["log"]["channels"] == {"coll": 1, "p2p": 2}
    first = document["findings"][0]
    assert first["evidence"][0]["line"] == 3
    assert set(first) == {"id", "severity", "what", "evidence", "why", "fix", "source"}
