"""Turns HTTP requests of an agent in any language into calls of its episode's recorder, as turns.

How tokens are sampled and trained plays no part here. The package is not loaded until an agent
needs an address or an OpenAI client.
"""
