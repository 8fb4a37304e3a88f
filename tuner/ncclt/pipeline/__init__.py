"""The verbs joined: one workload, several at once, or from a job to a result."""
