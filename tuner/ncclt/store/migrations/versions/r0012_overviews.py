"""Find running studies and the scores of a study without reading documents."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add indexes over states of studies and scores of trials, and the state to that of the newest revisions."""
    op.create_index("ix_studies_state", "studies", ["state", "cluster", "model"])
    op.create_index("ix_trials_score", "trials", ["study", "phase", "setting", "score_us"])
    op.drop_index("ix_recommendations_newest", "recommendations")
    columns = ["cluster", "model", "fingerprint", "origin", "sequence", "state"]
    op.create_index("ix_recommendations_newest", "recommendations", columns)
