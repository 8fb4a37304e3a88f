"""What would help a job more than NCCL settings: predicted step times of other buckets, hooks, sharding and nodes."""
