"""Read PARAM's comms traces."""
