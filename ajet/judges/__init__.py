"""The judges that a config can name: exact match, mathematics, a language model, rubrics.

They return ``(reward, is_success)``. The base classes are in core/judge.
"""
