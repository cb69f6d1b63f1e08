"""Runs a shell script with bash, in ajet's sandbox, and returns the commands that it calls. No
command really runs (stand_ins.bash), and there is no network and none of the user's home folder or
environment. Scripts that the script names (`source env.sh`, `bash run.sh`) exist; other files do
not.
"""

import asyncio
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from ajet.convert.source import NotConvertible
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.sandbox.limits import MIB, Limits
from ajet.sandbox.pool import SandboxError, SandboxPool

RUN_S, ALL_S = 60.0, 240.0
"""Time limits in seconds: for one run of a script, and for all runs of one call. A run that uses
the processor for long, or calls many commands, is stopped sooner (sandboxed.py)."""
LIMITS = Limits(memory_bytes=512 * MIB, cpu_s=60, num_processes=128, output_bytes=16 * MIB)
MOST_FILES, MOST_BYTES = 40, 1 << 19
FROM_OUTSIDE, FROM_COMMAND = 790_001, 791_004
"""Numbers that stand for unknown values: the first one for variables, and the output of commands.
They are numbers so that arithmetic on them works."""
SMALL = 2
_UNKNOWN = re.compile(r"(?<!\d)79[01]\d{3}(?!\d)")
_HERE = Path(__file__).parent
_NAME = r"[A-Za-z_]\w*"
_REFERENCE = re.compile(rf"\$\{{?[#!]?({_NAME})")
_ARITHMETIC = re.compile(r"\(\((.*?)\)\)", re.DOTALL)
_HAS_DEFAULT = re.compile(rf"\$\{{({_NAME})(?:\[[^\]]*\])?:?[-=+]")
_ASSIGNED = re.compile(rf"(?<![\w$.{{-])({_NAME})\+?=")
_TESTED = re.compile(
    rf"""-[nzv]\s+"?\$?\{{?({_NAME})"""
    rf"""|\[\[\s+!?\s*"?\$\{{?({_NAME})\}}?"?\s*(?:\]\]|&&|\|\|)"""
    rf"""|\$\{{?({_NAME})\}}?"?\s*[!=]?=\s*(?:""|'')"""
)
_POSITIONAL = re.compile(r"\$\{?[1-9]")
_CHANGING = re.compile(r"\$\{?(?:S?RANDOM|SECONDS|EPOCH|BASHPID|\$)|\bmktemp\b")
_OF_BASH = re.compile(
    r"BASH\w*|_\w*|HOME|PATH|PWD|OLDPWD|IFS|OPT\w+|REPLY|LINENO|FUNCNAME|RANDOM|SECONDS|EPOCH\w+|"
    r"E?UID|PPID|GROUPS|SHELLOPTS|SHLVL|PIPESTATUS|DIRSTACK|PS\d|TERM|LANG|LC_\w+|TMPDIR|MACHTYPE|"
    r"OSTYPE|HOSTTYPE|COLUMNS|LINES|LD_\w+|MAPFILE|COPROC"
)
_SCRIPT_NAME = re.compile(r"[\w./-]*\.(?:sh|bash|sbatch|slurm|env)\b")


@dataclass(frozen=True)
class Run:
    """One run of the script. `exit_code` is None if it was stopped; `error` is a line of stderr;
    `not_here` are the files that bash could not read."""

    commands: list[list[str]]
    exit_code: int | None
    error: str
    not_here: list[str] = field(default_factory=list)

    @property
    def is_all_there_is(self) -> bool:
        """Tells whether no stand-in printed anything that a later command may depend on: at most
        one command was called, with its own output."""
        return not self.commands or (len(self.commands) == 2 and bool(self.commands[0]))


class ScriptRuns:
    """Runs one script in a sandbox that ends with the `with` block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = _files(path)
        self.plain = Run([], 0, "")
        self.if_all_were_set: list[Run] = []
        self.needs_files = False

    def __enter__(self) -> Self:
        self._bash = _bash(self._path)
        self._pool = SandboxPool(LIMITS, num_ready=1, num_running=2)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def as_it_stands(self) -> list[Run]:
        """Returns the runs of the script without values from outside."""
        tested = sorted(self._tested)
        required = sorted(self._referenced - self._tested)
        (self.plain,) = self._run([_setting()])
        depends = tested or required or self.takes_arguments or _CHANGING.search(self._text)
        if self.plain.is_all_there_is and not depends:
            return [self.plain]
        all_set = _setting([*required, *tested], arguments=self.takes_arguments)
        *varied, all_set = self._run([*_varied(required), all_set])
        self.if_all_were_set = [all_set]
        return [self.plain, *varied]

    def with_required_values(self) -> list[Run]:
        """Returns the runs of a script that ends early without values from outside."""
        names = sorted(self._referenced | self._tested)
        self.if_all_were_set = []
        return self._run(_varied(names, arguments=True))

    def with_files(self) -> list[Run]:
        """Returns the runs of a script that ends early without files that it looks for."""
        names = sorted(self._referenced - self._tested)
        self.needs_files = True
        settings = [_setting(), *_varied(names)]
        return self._run([setting | {"has_files": "1"} for setting in settings])

    @staticmethod
    def num_unknown(text: str) -> int:
        """Returns how many numbers in the text stand for unknown values."""
        return len(_UNKNOWN.findall(text))

    @staticmethod
    def without_unknown(text: str, filler: str = "…") -> str:
        return _UNKNOWN.sub(filler, text)

    @cached_property
    def _text(self) -> str:
        return "\n".join(self._files.values())

    @property
    def takes_arguments(self) -> bool:
        return _POSITIONAL.search(self._text) is not None

    @cached_property
    def _tested(self) -> set[str]:
        """Returns the variables for which the script tests whether they are set."""
        return self._free(name for names in _TESTED.findall(self._text) for name in names)

    @cached_property
    def _referenced(self) -> set[str]:
        """Returns the variables that the script uses without a default."""
        sums = " ".join(_ARITHMETIC.findall(self._text))
        return self._free([*_REFERENCE.findall(self._text), *re.findall(rf"\b{_NAME}", sums)])

    def _free(self, names: Iterable[str]) -> set[str]:
        defaults = set(_HAS_DEFAULT.findall(self._text))
        # Variables of the environment are exported, so other scripts would see values that this one
        # assigns itself.
        assigned = set(_ASSIGNED.findall(self._text)) if len(self._files) > 1 else set()
        names_ = {name for name in names if name and not _OF_BASH.fullmatch(name)}
        return names_ - defaults - assigned

    def _run(self, settings: Sequence[Mapping[str, Any]]) -> list[Run]:
        request = {
            "files": self._files,
            "script": str(self._path.resolve()),
            "folder": str(Path.cwd()),
            "bash": self._bash,
            "stand_ins": (_HERE / "stand_ins.bash").read_text(encoding="utf-8"),
            "timeout_s": RUN_S,
            "runs": settings,
        }
        program = (_HERE / "sandboxed.py").read_text(encoding="utf-8")
        program += f"\nmain(json.loads({json.dumps(request)!r}))\n"
        with ThreadPoolExecutor(1) as thread:  # the caller may have an event loop
            results = thread.submit(asyncio.run, self._outcome(program)).result()
        return [
            Run(
                [[_outside(word, result) for word in words] for words in result["commands"]],
                result["exit_code"],
                _outside(result["error"], result),
                [_outside(name, result) for name in result["not_here"]],
            )
            for result in results
        ]

    async def _outcome(self, program: str) -> list[dict[str, Any]]:
        try:
            if not await asyncio.to_thread(lambda: self._pool.holds):
                raise self._no_sandbox(self._pool.report())
            outcome = await self._pool.run(program, ALL_S)
        except SandboxError as error:
            raise self._no_sandbox(str(error)) from error
        if outcome.returncode != 0:
            lines = outcome.stderr.strip().splitlines() or [f"exit code {outcome.returncode}"]
            raise NotConvertible(
                f"{self._path}: bash did not finish it in the sandbox: {lines[-1]}; give "
                "the YAML itself"
            )
        results: list[dict[str, Any]] = json.loads(outcome.stdout)
        return results

    def _no_sandbox(self, reason: str) -> ConfigError:
        return ConfigError(
            f"{self._path}: bash reads a script in a sandbox, and none holds here ({reason}): "
            "allow user namespaces, or give the YAML itself",
            code=Code.PROGRAM_MISSING,
        )


def _bash(path: Path) -> str:
    bash = shutil.which("bash", path="/usr/bin:/bin")
    if bash is None:
        raise ConfigError(
            f"{path}: bash reads a script, and there is none in /usr/bin or /bin: install it, or "
            "give the YAML itself",
            code=Code.PROGRAM_MISSING,
        )
    return bash


def _setting(
    names: Sequence[str] = (),
    first: int = FROM_OUTSIDE,
    *,
    output: int = FROM_COMMAND,
    status: int = 0,
    takes_branches: bool = False,
    arguments: bool = False,
) -> dict[str, Any]:
    """Returns the settings of one run. The variables `names` are numbers from `first` on."""
    return {
        "variables": {name: str(first + place) for place, name in enumerate(names)},
        "arguments": [str(first + 900 + place) for place in range(9)] if arguments else [],
        "output": str(output),
        "status": status,
        "takes_branches": "1" if takes_branches else "",
        "has_files": "",
    }


def _varied(names: Sequence[str], *, arguments: bool = False) -> list[dict[str, Any]]:
    """Returns runs whose variables from outside are large numbers, with conditions on the output of
    commands true, and small ones, with commands that print another number and fail; and both again
    without what may keep the script from starting the training: other branches, and commands that
    fail. A loop over a large number is stopped, so the last is run with two small ones."""
    return [
        _setting(names, takes_branches=True, arguments=arguments),
        _setting(names, SMALL, output=SMALL, status=1, arguments=arguments),
        _setting(names, SMALL + 1, output=SMALL + 1, status=1, arguments=arguments),
        _setting(names, arguments=arguments),
        _setting(names, SMALL, output=SMALL, arguments=arguments),
    ]


def _outside(word: str, result: Mapping[str, Any]) -> str:
    """Returns a word with paths of the host instead of the sandbox: `~` for the home folder, `.`
    for the current one, and stand-ins by their names alone."""
    word = word.replace(f"{result['bin']}/", "")
    for inside, outside in ((result["home"], "~"), (result["folder"], "."), (result["root"], "")):
        word = re.sub(rf"{re.escape(inside)}(?![\w-])", outside, word)
    return word


def _files(path: Path) -> dict[str, str]:
    """Returns the script and the scripts that it names, by their absolute paths."""
    files: dict[str, str] = {}
    waiting = [path.resolve()]
    while waiting and len(files) < MOST_FILES:
        file = waiting.pop(0)
        if str(file) in files or file.stat().st_size > MOST_BYTES:
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            if files:
                continue
            raise NotConvertible(f"{path}: cannot be read: {error}") from error
        files[str(file)] = text
        # Scripts name others relative to where they are run, which is often the root of a
        # repository.
        folders = [Path.cwd(), *file.parents[:4]]
        for name in dict.fromkeys(_SCRIPT_NAME.findall(re.sub(r"\$\w+", "", text))):
            paths = [Path(name), *(folder / name.lstrip("/") for folder in folders)]
            waiting += [script.resolve() for script in paths if script.is_file()][:1]
    return files
