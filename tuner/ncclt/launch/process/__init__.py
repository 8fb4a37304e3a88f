"""Run one launch on this machine: start it, bound the memory of its output, end all of it."""
