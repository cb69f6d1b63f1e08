"""Provides AgentJet's `ajet.tuner`."""

from ajet.core.workflow.tuner import AjetTuner

__all__ = ["AjetTuner"]
