"""Generates tasks. In: documents and example questions. Out: tasks of a language model, on disk.

Ignores whether the answers are right: they are the generating model's."""
