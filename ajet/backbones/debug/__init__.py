"""One process, the engine in it. In: a config. Out: a run folder. Ignored: clusters."""
