"""Summarise workloads: histograms, exposure, differences, estimates."""
