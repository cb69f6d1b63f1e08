"""Is `ajet.utils.vsdb` of AgentJet."""

from ajet.core.breakpoint import bp

vscode_conditional_breakpoint = bp

__all__ = ["bp", "vscode_conditional_breakpoint"]
