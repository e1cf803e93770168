"""What Alembic runs: the migrations, on the connection that it was given."""

from __future__ import annotations

from alembic import context

from foretell.serve.database.tables import Base

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True
)
context.run_migrations()
