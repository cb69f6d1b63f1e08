"""The names that files written for other systems import.

In: a user's file, whose import lines name `ajet.compat.verl` or `ajet.compat.roll` in place of the
other system; a file for AgentJet runs unchanged (agentjet/README.md). Out: ajet's own classes under
the names that the file uses. Ignores their configs (`ajet.convert`).
"""
