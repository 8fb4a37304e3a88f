"""Return whether a cluster is fit to be measured; beside the pipeline."""
