"""Makes the user's code run in another process as in the driver: folders, and keys of services.

env = ImportEnv.current()     in the driver
env.enter()                   in a worker, before it imports user code; in a method of the
                              actor, since Ray reports an error of `__init__` only as the
                              actor's death
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code

SERVICE_PREFIXES = ("AJET_", "OPENAI_", "ANTHROPIC_", "DASHSCOPE_", "HF_TOKEN", "HF_ENDPOINT")
"""Variables with addresses and keys of services. Processes of a joined Ray have the environment of
its `ray start`, not the command's."""


@dataclass(frozen=True, slots=True)
class ImportEnv:
    """The current folder, the search path and the services of a process. The services' keys do not
    go through Ray's `runtime_env`, which its logs show."""

    folder: str
    search_path: tuple[str, ...]
    services: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def current(cls) -> ImportEnv:
        search_path = tuple(str(Path(folder).absolute()) for folder in sys.path)
        names = [name for name in os.environ if name.startswith(SERVICE_PREFIXES)]
        return cls(str(Path.cwd()), search_path, {name: os.environ[name] for name in names})

    def enter(self) -> None:
        """Makes relative paths, imports and services work as in the driver."""
        os.environ |= self.services
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise ConfigError(
                f"{self.folder}: {error.strerror} on {os.uname().nodename}: every machine of the "
                "cluster needs the project in the same folder",
                code=Code.PROJECT_NOT_ON_NODE,
            ) from error
        sys.path += [folder for folder in self.search_path if folder not in sys.path]
