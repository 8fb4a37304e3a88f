"""Read what NVIDIA's nccl-tests prints and writes, whether ncclt ran it or a user brings it."""
