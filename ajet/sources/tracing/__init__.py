"""Makes tasks of traces. In: conversations that an agent had in production. Out: tasks with
answers.

Ignores the recorded results of tools: an agent in training calls its own."""
