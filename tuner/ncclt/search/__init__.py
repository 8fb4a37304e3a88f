"""The search for one workload on one cluster; the only room that knows Optuna."""
