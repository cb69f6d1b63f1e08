"""Is `ajet.tuner` of AgentJet."""

from ajet.core.workflow.tuner import AjetTuner

__all__ = ["AjetTuner"]
