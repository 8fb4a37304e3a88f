"""The port of NCCL's cost model, figure by figure: nothing in it changes unnoticed.

No published figures cover all of it; what is recorded are its own predictions, so that a change of a table or a
formula shows as a difference to read. Run once with NCCLT_UPDATE_GOLDEN=1 after a wanted change.
"""

import os
from itertools import product
from pathlib import Path

from ncclt.core.algorithms import Algorithm, Protocol, available_algorithms, available_protocols
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective
from ncclt.nccl.cost_model.model import nccl_choice, predicted_us
from ncclt.nccl.cost_model.topology import build_topology

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "cost_model"
SIZES = [1 << exponent for exponent in (3, 6, 10, 12, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 26, 28, 30, 33)]
DGX = {"gpus_per_node": 8, "link_class": "nvswitch", "fabric": "infiniband", "nics_per_node": 8, "gpudirect": True}
MACHINES = {
    "dgx-a100": {**DGX, "gpu": "A100", "compute_capability": 80, "link_gbps": 300.0, "nic_gbps": 25.0, "cpu": "amd"},
    "dgx-h100": {**DGX, "gpu": "H100", "compute_capability": 90, "link_gbps": 450.0, "nic_gbps": 50.0},
    "dgx-b200": {**DGX, "gpu": "B200", "compute_capability": 100, "link_gbps": 900.0, "nic_gbps": 50.0},
    "v100": {
        **DGX,
        "gpu": "V100",
        "compute_capability": 70,
        "link_gbps": 150.0,
        "nic_gbps": 12.5,
        "link_class": "nvlink",
        "nics_per_node": 4,
    },
    "l40s": {
        "gpu": "L40S",
        "gpus_per_node": 4,
        "compute_capability": 89,
        "link_class": "shm",
        "link_gbps": 32.0,
        "cpu": "amd",
        "fabric": "ethernet",
        "nics_per_node": 1,
        "nic_gbps": 12.5,
    },
    "t4": {
        "gpu": "T4",
        "gpus_per_node": 1,
        "compute_capability": 75,
        "link_class": "pcie",
        "link_gbps": 16.0,
        "fabric": "ethernet",
        "nics_per_node": 1,
        "nic_gbps": 1.25,
    },
    "a10": {
        "gpu": "A10",
        "gpus_per_node": 2,
        "compute_capability": 86,
        "link_class": "pcie",
        "link_gbps": 32.0,
        "fabric": "infiniband",
        "nics_per_node": 2,
        "nic_gbps": 25.0,
        "gpudirect": True,
    },
}
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


def test_what_is_predicted_and_chosen(subtests):
    for machine in MACHINES:
        with subtests.test(machine=machine):
            path = GOLDEN / f"{machine}.txt"
            lines = []
            for nodes in (1, 2, 4):
                cluster = Cluster(name=machine, nodes=nodes, nccl_version="2.28.9", **MACHINES[machine])
                if cluster.world_size > 1:
                    lines += [f"# {nodes} nodes", *rows(cluster)]
            text = "\n".join(lines) + "\n"
            if os.environ.get("NCCLT_UPDATE_GOLDEN"):
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)

            assert text.splitlines() == path.read_text().splitlines()
