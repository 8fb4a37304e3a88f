"""Read workloads, one module or folder per source."""
