"""The names that files written for other systems import: a file for verl or ROLL gets
`ajet.compat.verl` or `ajet.compat.roll` in its import lines, a file for AgentJet runs unchanged
(agentjet/README.md).
"""
