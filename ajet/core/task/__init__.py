"""Provides tasks. In: rows of a data set. Out: tasks, in an order that resumes. Ignores models and agents."""
