"""Plugins for ncclt: start from this package."""
