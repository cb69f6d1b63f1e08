"""The judges that a config can name: exact match, mathematics, a language model, rubrics.

In: a task and a workflow's output. Out: ``(reward, is_success)``. The base classes are in
core/judge; a judge of the user's derives from the same. Ignores tokens and turns.
"""
