"""Makes the user's code importable in another process: the same folders on the search path.

    env = ImportEnv.of_this_process()     in the driver
    env.enter()                           in a worker, before it imports user code; in a method of
                                          the actor, since Ray reports an error of `__init__` only
                                          as the actor's death

Not covered: bringing files to another machine (a shared file system, or Ray's working_dir).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ImportEnv:
    """The current folder and the search path of a process."""

    folder: str
    search_path: tuple[str, ...]

    @classmethod
    def of_this_process(cls) -> ImportEnv:
        return cls(str(Path.cwd()), tuple(str(Path(folder).absolute()) for folder in sys.path))

    def enter(self) -> None:
        """Makes relative paths and imports mean what they mean in the driver."""
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise ConfigError(
                f"{self.folder}: {error.strerror} on {os.uname().nodename}: every machine of the "
                "cluster needs the project in the same folder",
                code=Code.PROJECT_NOT_ON_NODE,
            ) from error
        sys.path += [each for each in self.search_path if each not in sys.path]
