"""Read Nsight Systems exports."""
