"""Read PyTorch Flight Recorder dumps."""
