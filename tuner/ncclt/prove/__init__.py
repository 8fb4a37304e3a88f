"""Prove a policy against the default, and check later that it still holds."""
