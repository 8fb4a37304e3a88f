"""Read NCCL's debug log."""
