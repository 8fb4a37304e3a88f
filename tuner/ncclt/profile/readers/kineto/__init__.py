"""Read PyTorch Kineto traces."""
