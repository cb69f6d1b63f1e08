"""AgentJet's import paths: `task_judge/base_judge.py` here is `ajet.task_judge.base_judge`. They
lead to ajet's classes under AgentJet's names, or to thin adapters. README.md lists the paths.
"""
