"""Read Horovod timelines."""
