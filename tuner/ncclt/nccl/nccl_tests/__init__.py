"""Read what NVIDIA's nccl-tests prints and writes, run by ncclt or by a user."""
