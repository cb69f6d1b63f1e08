"""In: documents and example questions. Out: tasks that a language model made of them, on disk.

Ignores whether the answers are right: they are the generating model's."""
