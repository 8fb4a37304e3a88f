"""Read NCCL's debug log: how it starts, which calls it makes, and the costs that it prints."""
