"""What the ranks run: files that need only Python 3.9 and PyTorch, because they are copied to nodes without ncclt."""
