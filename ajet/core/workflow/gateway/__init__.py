"""HTTP requests of an agent in any language become calls of its episode's recorder.

The package is not loaded until an agent needs an address or an OpenAI client.
"""
