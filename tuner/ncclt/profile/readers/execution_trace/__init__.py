"""Read PyTorch execution traces."""
