"""Provides AgentJet's `python -m ajet.launcher`: the command line."""

from ajet.cli.launcher import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
