"""Is `python -m ajet.launcher` of AgentJet: the command line."""

from ajet.cli.launcher import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
