"""Runs command-line agents, unchanged, as workflows: from a task to the folder that they leave."""
