"""Jobs count the seconds that were worked on them, for the quota of their team."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("begun", sa.Double(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("seconds", sa.Double(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("jobs", "seconds")
    op.drop_column("jobs", "begun")
