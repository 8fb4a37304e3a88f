"""Recording: what a training job sends, taken from a live run of it, without a change to its code."""
