"""Contract tests that every reader, benchmark and launcher must pass, fakes and sample records."""
