"""Examination of a cluster: is it fit to be measured? Beside the pipeline."""
