"""Records what a run leaves behind.

In: groups, advantages, samples and metrics of each step. Out: one run folder (config, code, logs,
checkpoints, `episodes.sqlite`, TensorBoard events, `summary.json`) and a live display.
This package ignores how the numbers were made; nothing here changes training.
"""
