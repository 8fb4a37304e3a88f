"""Read NCCL Inspector dumps."""
