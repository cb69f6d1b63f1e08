"""Public benchmarks by name: their tasks, how the model is asked, and their official scoring."""
