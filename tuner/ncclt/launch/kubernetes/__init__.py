"""Launch on Kubernetes, through kubectl."""
