"""`ncclt preflight`: a fabric before a job, down to its slow node, link or GPU."""
