"""Profiles of a team, and pictures of what jobs found."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "profiles",
        sa.Column("team_id", sa.String(length=32), sa.ForeignKey("teams.id"), primary_key=True),
        sa.Column("name", sa.String(length=64), primary_key=True),
        sa.Column("device", sa.String(length=200), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("arrays", sa.LargeBinary(), nullable=True),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
    )
    op.add_column("jobs", sa.Column("picture", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "picture")
    op.drop_table("profiles")
