"""Provides AgentJet's `ajet.task_judge.env_service_as_judge`."""

from ajet.environments.env_service.judge import EnvServiceJudge

__all__ = ["EnvServiceJudge"]
