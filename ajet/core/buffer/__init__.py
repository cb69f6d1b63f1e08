"""Judged groups on their way from explorer to trainer, in a database, within a staleness bound."""
