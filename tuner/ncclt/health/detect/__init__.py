"""Which cluster is this: what nvidia-smi, the network devices and NCCL's log show becomes a cluster's fields."""
