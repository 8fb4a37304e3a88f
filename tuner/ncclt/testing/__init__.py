"""Contract tests that every reader, benchmark, launcher, runner and store must pass, and fakes."""
