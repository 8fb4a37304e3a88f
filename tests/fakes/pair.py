"""A cluster of one node with four GPUs, for what only needs some cluster."""

from ncclt.core.cluster import Cluster

PAIR = Cluster(
    name="pair",
    nodes=1,
    gpus_per_node=4,
    gpu="A100",
    compute_capability=80,
    link_class="nvlink",
    link_gbps=300,
    nccl_version="2.27.3",
)
