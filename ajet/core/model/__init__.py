"""In: a path. Out: a model, its tokenizer, a flat forward. Ignores who samples or trains."""
