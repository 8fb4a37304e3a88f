"""Detection of a cluster's fields from nvidia-smi, the network devices and NCCL's log."""
