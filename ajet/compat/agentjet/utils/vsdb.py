"""Provides AgentJet's `ajet.utils.vsdb`."""

from ajet.core.user_code.breakpoint import bp

vscode_conditional_breakpoint = bp

__all__ = ["bp", "vscode_conditional_breakpoint"]
