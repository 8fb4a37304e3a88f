"""Alembic's folder; `ncclt.store.migrate` runs it. There is no way down: it would throw measurements away."""
