"""Project folders that train: from a kind of `ajet init`, or around a file with an agent."""
