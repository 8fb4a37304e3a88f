"""Run one launch on this machine: start it, bound its memory, end all of it."""
