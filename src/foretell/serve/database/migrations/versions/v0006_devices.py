"""Devices of a team's own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "devices",
        sa.Column("team_id", sa.String(length=32), sa.ForeignKey("teams.id"), primary_key=True),
        sa.Column("name", sa.String(length=100), primary_key=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("devices")
