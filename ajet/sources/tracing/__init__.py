"""Makes tasks from traces: conversations that an agent had in production."""
