"""Port NCCL's cost model: what NCCL would choose by itself."""
