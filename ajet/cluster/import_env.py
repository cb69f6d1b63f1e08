"""The user's code in another process of the run: the same folders on the search path.

    here = ImportEnv.of_this_process()        the driver
    here.enter()                                 a worker, before it imports anything of the user's;
                                                 in a method: what an actor's __init__ raises comes
                                                 back as its death

Not covered: bringing files to another machine (a shared file system, or Ray's working_dir).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from ajet.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ImportEnv:
    """The current folder and the search path of a process."""

    folder: str
    search_path: tuple[str, ...]

    @classmethod
    def of_this_process(cls) -> ImportEnv:
        return cls(str(Path.cwd()), tuple(str(Path(place).absolute()) for place in sys.path))

    def enter(self) -> None:
        """Relative paths of the config, and imports, then mean what they mean in the driver."""
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise ConfigError(
                f"{self.folder}: {error.strerror} on {os.uname().nodename}: every machine of the "
                "cluster needs the project in the same folder"
            ) from error
        sys.path += [place for place in self.search_path if place not in sys.path]
