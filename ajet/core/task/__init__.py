"""Provides tasks. In: rows of a data set. Out: tasks, in an order that resumes.

This package ignores models and agents.
"""
