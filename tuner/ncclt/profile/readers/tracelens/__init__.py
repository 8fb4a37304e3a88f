"""Read TraceLens tables."""
