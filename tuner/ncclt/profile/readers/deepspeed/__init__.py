"""Read DeepSpeed's comms logger."""
