"""ncclt: find, prove and serve the NCCL configuration that moves one workload fastest on one cluster."""

__version__ = "0.1.0"
