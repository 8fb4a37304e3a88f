"""Changes to a job that may help more than NCCL settings: other buckets, hooks, sharding, numbers of nodes."""
