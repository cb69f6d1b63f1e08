"""Writes a Dockerfile as a script of bash, for a sandbox without images.

The base image is this machine's own system. What such a sandbox cannot do (a second stage, a user,
ADD of an address or an archive, COPY from another image) raises `SuiteDataError`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ajet.suites.suite import SuiteDataError, read_text

WITHOUT_EFFECT = ("FROM", "LABEL", "EXPOSE", "CMD", "STOPSIGNAL", "MAINTAINER")
WITHOUT_EFFECT += ("HEALTHCHECK", "VOLUME")
ARCHIVES = (".tar", ".gz", ".tgz", ".bz2", ".xz")
COPY = """\
copy() {  # copy SOURCE… TARGET: a folder's content, or files; many of them into a folder
  local target="${@: -1}" source
  if [ $# -gt 2 ] || [ "${target: -1}" = / ]; then mkdir -p "$target"; fi
  for source in "${@:1:$#-1}"; do
    if [ -d "$source" ]; then mkdir -p "$target" && cp -a "$source/." "$target/"
    else mkdir -p "$(dirname "$target")" && cp -a "$source" "$target"; fi || return 1
  done
}"""
_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)\s+(.*)", re.DOTALL)
_WORD = re.compile(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+""")
_PIECE = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^'"\\]+""")
_SUBSTITUTION = re.compile(r"`|\$(?=\()")
_ABSOLUTE = re.compile(r"(?<![\w./}])/([A-Za-z0-9_][\w.-]*)")


@dataclass(frozen=True)
class BuildScript:
    """`setup` makes the files, once. `before` stands before each later command: the variables and
    the folder. `folders` are the names below / that the Dockerfile mentions."""

    setup: str
    before: str
    folders: tuple[str, ...]


def build_script(file: Path, context: str, workdir: str | None) -> BuildScript:
    """`context` is the path inside the sandbox of the folder that files are copied from; `workdir`
    is the folder of later commands, in place of the Dockerfile's."""
    setup, before, folder, num_stages = ["set -e", COPY], [], "/", 0
    text = read_text(file)
    if (file.parent / ".dockerignore").exists():
        raise SuiteDataError(f"{file.parent / '.dockerignore'}: it needs podman or docker")
    for name, value in instructions(text):
        num_stages += name == "FROM"
        if num_stages > 1 or "<<" in value:
            raise SuiteDataError(f"{file}: {name} {value}: it needs podman or docker")
        match name:
            case "WORKDIR":
                folder = f"{folder.rstrip('/')}/{value}" if value[0] != "/" else value
                setup.append(f"mkdir -p {folder}; cd {folder}")
            case "ENV" | "ARG":
                line = _exports(value, is_argument=name == "ARG")
                setup.append(line)
                before += [line] if name == "ENV" else []
            case "COPY" | "ADD":
                setup.append(_copy(value, context, f"{file}: {name} {value}", is_add=name == "ADD"))
            case "RUN":
                command = json.loads(value) if value[0] == "[" else ["/bin/sh", "-c", value]
                setup.append(shlex.join(command))
            case _ if name not in WITHOUT_EFFECT and (name, value) != ("USER", "root"):
                raise SuiteDataError(f"{file}: {name} {value}: it needs podman or docker")
    before.append(f"cd {workdir or folder}")
    folders = dict.fromkeys(_ABSOLUTE.findall(f"{text}\n {workdir or ''}"))
    return BuildScript("\n".join(setup), "\n".join(before), tuple(folders))


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yields names, in capitals, and arguments: without comments, and with lines joined that end in
    a backslash."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)).splitlines():
        if match := _INSTRUCTION.match(line):
            yield match[1].upper(), match[2].strip()


def _exports(value: str, *, is_argument: bool) -> str:
    """`A=1 B="two words"`, or the older form `A one value`; an ARG may have no value."""
    if "=" in value.split()[0]:
        pairs = [word.partition("=")[::2] for word in _WORD.findall(value)]
    else:
        key, _, rest = value.partition(" ")
        pairs = [(key, rest.strip())]
    # In one command: a value sees the variables as they were before the instruction.
    words = [f"{key}={_quoted(text)}" for key, text in pairs if text or not is_argument]
    return f"export {' '.join(words)}" if words else ":"


def _quoted(text: str) -> str:
    """Returns a value as one word of bash, with the Dockerfile's own quotes. Of what means
    something to bash, only `$NAME` and `${NAME}` keep their meaning."""
    pieces = _PIECE.findall(text)
    for number, piece in enumerate(pieces):
        if piece[0] not in "'\\":
            piece = _SUBSTITUTION.sub(r"\\\g<0>", piece)
            pieces[number] = piece if piece[0] == '"' else f'"{piece}"'
    return "".join(pieces)


def _copy(value: str, context: str, where: str, *, is_add: bool) -> str:
    parts = json.loads(value) if value.startswith("[") else value.split()
    options = [part for part in parts if part.startswith("--")]
    *sources, target = [part for part in parts if not part.startswith("--")]
    if any(not option.startswith("--chmod=") for option in options):
        raise SuiteDataError(f"{where}: {options[0]} needs podman or docker")
    if is_add and any("://" in source or source.endswith(ARCHIVES) for source in sources):
        raise SuiteDataError(f"{where}: an address or an archive needs podman or docker")
    copied = " ".join(f"{context}/{source.lstrip('/')}" for source in sources)
    lines = [f"copy {copied} {target}"]
    lines += [f"chmod -R {option.partition('=')[2]} {target}" for option in options]
    return "; ".join(lines)
