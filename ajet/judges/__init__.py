"""The judges that a config can name. They return ``(reward, is_success)``."""
