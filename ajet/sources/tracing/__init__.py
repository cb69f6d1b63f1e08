"""In: conversations that an agent had in production. Out: tasks with their recorded answers.

Ignores what tools said back then: an agent in training calls its own."""
