"""Hand a recommendation to a job: which variables or table it gets, and whether they took effect."""
