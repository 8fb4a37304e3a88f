"""Programs of the ranks, which need only Python 3.9 and PyTorch, because they run on nodes without ncclt."""
