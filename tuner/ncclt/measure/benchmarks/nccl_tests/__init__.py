"""Measure with NVIDIA's nccl-tests."""
