"""The port of NCCL's cost model, figure by figure: nothing in it changes unnoticed.

No published figures cover all of it; what is recorded are its own predictions, so that a change of a table or a
formula shows as a difference to read. Run once with NCCLT_UPDATE_GOLDEN=1 after a wanted change.
"""

from itertools import product
from pathlib import Path

from ncclt.core.algorithms import Algorithm, Protocol, available_algorithms, available_protocols
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective
from ncclt.nccl.cost_model.model import nccl_choice, predicted_us
from ncclt.nccl.cost_model.topology import build_topology

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "cost_model"
SIZES = [1 << exponent for exponent in (3, 6, 10, 12, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 26, 28, 30, 33)]
NODE = ("gpu", "compute_capability", "gpus_per_node", "link_class", "link_gbps")
NETWORK = ("fabric", "nics_per_node", "nic_gbps")
MACHINES = {
    "dgx-a100": ("A100", 80, 8, "nvswitch", 300.0, "infiniband", 8, 25.0),
    "dgx-h100": ("H100", 90, 8, "nvswitch", 450.0, "infiniband", 8, 50.0),
    "dgx-b200": ("B200", 100, 8, "nvswitch", 900.0, "infiniband", 8, 50.0),
    "v100": ("V100", 70, 8, "nvlink", 150.0, "infiniband", 4, 12.5),
    "l40s": ("L40S", 89, 4, "shm", 32.0, "ethernet", 1, 12.5),
    "t4": ("T4", 75, 1, "pcie", 16.0, "ethernet", 1, 1.25),
    "a10": ("A10", 86, 2, "pcie", 32.0, "infiniband", 2, 25.0),
}
AMD = ("dgx-a100", "l40s")
TUNABLE = [collective for collective in Collective if collective.is_tunable]


def rows(cluster):
    """Yield predictions in µs by size for every pair, then what is chosen from each size on."""
    graph = build_topology(cluster)
    for collective, algorithm, protocol in product(TUNABLE, Algorithm, Protocol):
        offered = algorithm in available_algorithms(collective, graph.cluster)
        if offered and protocol in available_protocols(collective, algorithm, graph.cluster):
            times = [predicted_us(collective, algorithm, protocol, size, graph) for size in SIZES]
            yield f"{collective} {algorithm}/{protocol} µs: {' '.join(f'{us:.6g}' for us in times)}"
    for collective, forced in product(TUNABLE, (None, *Algorithm)):
        before = ""
        for size in SIZES:
            choice = nccl_choice(collective, size, graph, algorithm=forced)
            if choice is not None:
                pair = f"{choice.algorithm}/{choice.protocol}"
                now = f"{pair} {choice.channels} channels {choice.threads} threads"
                if now != before:
                    yield f"{collective} {forced or 'free'} from {size}: {now}"
                before = now


def test_what_is_predicted_and_chosen(subtests, check_golden):
    for machine in MACHINES:
        with subtests.test(machine=machine):
            lines = []
            for nodes in (1, 2, 4):
                fields = dict(zip((*NODE, *NETWORK), MACHINES[machine], strict=True))
                fields |= {"gpudirect": fields["fabric"] == "infiniband"} | ({"cpu": "amd"} if machine in AMD else {})
                cluster = Cluster(name=machine, nodes=nodes, nccl_version="2.28.9", **fields)
                if cluster.world_size > 1:
                    lines += [f"# {nodes} nodes", *rows(cluster)]
            check_golden(GOLDEN / f"{machine}.txt", "\n".join(lines) + "\n")
