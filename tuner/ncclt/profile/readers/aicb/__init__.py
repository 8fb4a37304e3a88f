"""Read AICB's workloads and logs."""
