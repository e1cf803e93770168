"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("team_id", sa.String(length=32), nullable=True),
        sa.Column("key_id", sa.String(length=32), nullable=True),
        sa.Column("address", sa.String(length=200), nullable=False),
        sa.Column("what", sa.String(length=300), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("audit_by_team", "audit", ["team_id", "at"], unique=False)
    op.create_table(
        "teams",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "forecasts",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("team_id", sa.String(length=32), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("graph", sa.String(length=64), nullable=False),
        sa.Column("question", sa.JSON(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("workload", sa.String(length=1000), nullable=False),
        sa.Column("cluster", sa.String(length=1000), nullable=False),
        sa.Column("plan", sa.String(length=1000), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("fits", sa.Boolean(), nullable=False),
        sa.Column("asked_by", sa.String(length=32), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["team_id"],
            ["teams.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("forecasts_by_key", "forecasts", ["team_id", "key"], unique=True)
    op.create_table(
        "graphs",
        sa.Column("team_id", sa.String(length=32), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=1000), nullable=False),
        sa.Column("ops", sa.Integer(), nullable=False),
        sa.Column("training", sa.Boolean(), nullable=False),
        sa.Column("precision", sa.String(length=32), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["team_id"],
            ["teams.id"],
        ),
        sa.PrimaryKeyConstraint("team_id", "hash"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("team_id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("question", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("progress", sa.Double(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("changes", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lease", sa.String(length=32), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("asked_by", sa.String(length=32), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("ended", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["team_id"],
            ["teams.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_jobs_team_id"), "jobs", ["team_id"], unique=False)
    op.create_index("jobs_by_state", "jobs", ["state", "created"], unique=False)
    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("team_id", sa.String(length=32), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("label", sa.String(length=200), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("revoked", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["team_id"],
            ["teams.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "plans",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("team_id", sa.String(length=32), nullable=False),
        sa.Column("question", sa.JSON(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["team_id"],
            ["teams.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_plans_team_id"), "plans", ["team_id"], unique=False)
    op.create_table(
        "measurements",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("team_id", sa.String(length=32), nullable=False),
        sa.Column("graph", sa.String(length=64), nullable=False),
        sa.Column("cluster", sa.String(length=1000), nullable=False),
        sa.Column("plan", sa.String(length=1000), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("allocated", sa.BigInteger(), nullable=True),
        sa.Column("reserved", sa.BigInteger(), nullable=True),
        sa.Column("forecast_id", sa.String(length=32), nullable=True),
        sa.Column("measured_by", sa.String(length=32), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["forecast_id"],
            ["forecasts.id"],
        ),
        sa.ForeignKeyConstraint(
            ["team_id"],
            ["teams.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_measurements_team_id"), "measurements", ["team_id"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_measurements_team_id"), table_name="measurements")
    op.drop_table("measurements")
    op.drop_index(op.f("ix_plans_team_id"), table_name="plans")
    op.drop_table("plans")
    op.drop_table("keys")
    op.drop_index("jobs_by_state", table_name="jobs")
    op.drop_index(op.f("ix_jobs_team_id"), table_name="jobs")
    op.drop_table("jobs")
    op.drop_table("graphs")
    op.drop_index("forecasts_by_key", table_name="forecasts")
    op.drop_table("forecasts")
    op.drop_table("teams")
    op.drop_index("audit_by_team", table_name="audit")
    op.drop_table("audit")
