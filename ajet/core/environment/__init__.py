"""In: an environment's name, or a task of a served one. Out: a live instance for one episode,
closed or released at its end.

Ignores models, tokens and rewards' meaning (core/judge/env_service.py reads the score)."""
