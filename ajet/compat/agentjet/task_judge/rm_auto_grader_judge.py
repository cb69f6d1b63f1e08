"""Provides AgentJet's `ajet.task_judge.rm_auto_grader_judge`."""

from ajet.judges.rubrics_judge import RubricsJudge as AutoGraderJudge

__all__ = ["AutoGraderJudge"]
