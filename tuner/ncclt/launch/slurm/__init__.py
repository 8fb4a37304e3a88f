"""Launch in a Slurm allocation, and submit a study as a batch job."""
