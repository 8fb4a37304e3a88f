"""Tuning jobs: the workers that run them, and the rules that ask for them."""
