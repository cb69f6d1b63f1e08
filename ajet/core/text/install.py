"""Names the command that installs extras of ajet from where this ajet came from.

    a clone, also `pip install -e`    pip install -e '/home/ada/ajet[gguf]'
    a wheel, an sdist, a folder       pip install '/home/ada/ajet-0.1.0-py3-none-any.whl[gguf]'
    a repository                      pip install 'ajet[gguf] @ git+https://host.example/ajet@3fa1…'
    a package index                   pip install 'ajet[gguf]'

The installer records the origin (direct_url.json, PEP 610); without it, the index has the package.
"""

import json
import shlex
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

CODE = Path(__file__).parents[3]


def install_command(*extras: str) -> str:
    """Returns the shell command that adds these extras to the installed ajet."""
    return command_for(",".join(extras), CODE, _origin())


def command_for(extras: str, code: Path, origin: dict[str, Any] | None) -> str:
    """Returns the command for ajet's code in this folder, with the content of direct_url.json."""
    # Also where an editable install points to; site-packages has no such file.
    if (code / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{code}[{extras}]')}"
    url = (origin or {}).get("url", "")
    # A folder or an archive: pip takes extras behind either's path.
    if url.startswith("file:"):
        path = unquote(urlsplit(url).path)
        return f"pip install {shlex.quote(f'{path}[{extras}]')}"
    vcs = (origin or {}).get("vcs_info")
    if vcs:
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    requirement = f"ajet[{extras}] @ {url}" if url else f"ajet[{extras}]"
    return f"pip install {shlex.quote(requirement)}"


@cache
def _origin() -> dict[str, Any] | None:
    try:
        text = distribution("ajet").read_text("direct_url.json")
    except PackageNotFoundError:  # the code was copied, not installed
        return None
    return json.loads(text) if text else None
