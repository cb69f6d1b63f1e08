"""AgentJet's import paths: `task_judge/base_judge.py` here is `ajet.task_judge.base_judge`.

In: imports of files written for AgentJet. Out: ajet's own classes under AgentJet's names, or thin
adapters. Ignores the inside of AgentJet's trainer. README.md lists the paths.
"""
