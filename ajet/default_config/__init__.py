"""Holds the YAML that a user's YAML is laid over. AgentJet's classes of the same import path are in
compat/agentjet, as for every other path of AgentJet."""

from pathlib import Path

__path__.append(str(Path(__path__[0]).parent / "compat" / "agentjet" / "default_config"))
