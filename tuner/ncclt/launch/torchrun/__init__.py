"""Launch through torchrun on this machine."""
