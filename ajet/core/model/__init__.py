"""Loads and saves models. In: a path. Out: a model, its tokenizer, a flat forward."""
