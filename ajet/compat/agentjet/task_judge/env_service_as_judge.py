"""Is `ajet.task_judge.env_service_as_judge` of AgentJet."""

from ajet.tools.env_service.judge import EnvServiceJudge

__all__ = ["EnvServiceJudge"]
