"""The verbs joined: one workload, or from a job to a result."""
