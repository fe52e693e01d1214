"""Alembic's entry: runs our migrations on the connection that `migrate` hands over, in one transaction."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, version_table="schema_version", version_table_schema="retention")
with context.begin_transaction():
    context.run_migrations()
