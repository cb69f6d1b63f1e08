"""Defines the command line, `ajet` and `python -m ajet.cli.launcher`, and wires it to commands,
whose modules are imported on use. Exit codes: 0 done, 1 the user's error in one line, 2 wrong
usage, 130 stopped by Ctrl-C, 143 by SIGTERM (docs/json.md).
"""

import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from ajet.cli.json_document import FLAG, add_error, add_problem, current_document, json_document
from ajet.cli.process_end import end_within
from ajet.core.errors import AjetError, ConfigError, PackageMissing
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import extra_advice, one_line
from ajet.core.text.plain_value import printable
from ajet.core.text.redaction import redact
from ajet.core.user_code.plugins import load_plugin, plugins, refuse_names


@dataclass(frozen=True)
class Group:
    """A command that only has subcommands, such as `ajet inspect`."""

    commands: Mapping[str, str]
    help: str


SECTIONS: Mapping[str, Mapping[str, str | Group]] = {
    "Start": {
        "init": "ajet.cli.init:init",
        "examples": "ajet.cli.examples:examples",
        "check": "ajet.cli.check:check",
        "plan": "ajet.cli.plan:plan",
        "skill": "ajet.cli.skill:skill",
    },
    "Train": {
        "train": "ajet.cli.train:train",
        "debug": "ajet.cli.debug:debug",
        "sweep": "ajet.cli.sweep:sweep",
        "eval": "ajet.cli.eval:evaluate",
        "optimize-prompt": "ajet.cli.optimize_prompt:optimize_prompt",
    },
    "Inspect": {
        "view": "ajet.cli.view:view",
        "why": "ajet.cli.why:why",
        "inspect": Group(
            {
                "audit": "ajet.cli.audit:audit",
                "replay": "ajet.cli.replay:replay",
                "fork": "ajet.cli.fork:fork",
                "score": "ajet.cli.score:score",
                "trace": "ajet.cli.trace:trace",
                "rebuild": "ajet.cli.rebuild:rebuild",
                "env": "ajet.cli.env_check:env_check",
                "harbor": "ajet.cli.harbor_check:harbor_check",
                "schema": "ajet.cli.schema:schema",
                "stop": "ajet.cli.stop:stop",
            },
            help="Audit, replay, fork, score, trace, env, stop, …",
        ),
    },
    "Data": {
        "convert": "ajet.cli.convert:convert",
        "data": Group(
            {
                "prepare": "ajet.cli.prepare_data:prepare_data",
                "distill": "ajet.cli.distill_data:distill_data",
            },
            help="Write data sets: prepare, distill.",
        ),
        "export": "ajet.cli.export:export",
    },
    "Serve": {
        "serve": "ajet.cli.serve:serve",
        "watch": "ajet.cli.watch:watch",
        "servers": "ajet.cli.servers:servers",
    },
}
"""The sections of `ajet --help`: a command's function, as `module:function`, or a group."""
COMMANDS = {name: target for section in SECTIONS.values() for name, target in section.items()}
SUBCOMMANDS = {name: row.commands for name, row in COMMANDS.items() if isinstance(row, Group)}
PLUGIN_COMMANDS = "ajet.commands"
"""The group of entry points with commands of other packages: functions, as Typer takes them."""
FORMER_NAMES = {
    "audit": "inspect audit",
    "replay": "inspect replay",
    "fork": "inspect fork",
    "score": "inspect score",
    "trace": "inspect trace",
    "rebuild": "inspect rebuild",
    "env-check": "inspect env",
    "schema": "inspect schema",
    "prepare-data": "data prepare",
    "distill-data": "data distill",
    "explain": "why",
    "stop": "inspect stop",
}
"""Former names of commands. They still work, and no help lists them."""
WITHOUT_JSON = ("view", "serve")
"""Commands that serve until they are ended."""
UsageError: Any = typer.BadParameter.__mro__[1]
"""Is click's class. It is in the package click or within typer, by typer's version."""
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


class NoSuchCommand(UsageError):  # type: ignore[misc]
    """ajet, or a group of its commands, was called with a command that it does not have."""


class DashedOverride(UsageError):  # type: ignore[misc]
    """An override of the config was written as an option."""


CODES_OF_USAGE = {
    "NoSuchCommand": Code.NO_SUCH_COMMAND,
    "DashedOverride": Code.OVERRIDE_WITH_DASHES,
    "NoSuchOption": Code.NO_SUCH_OPTION,
    "MissingParameter": Code.ARGUMENT_MISSING,
    "BadOptionUsage": Code.ARGUMENT_MISSING,
    "NoArgsIsHelpError": None,  # its message is the help
}
"""Maps a class of click's to its kind; all others are about a value."""
ROOT_OPTIONS = ("--help", "-h", "--version", "--install-completion", "--show-completion")
TAKES_A_CONFIG = ("train", "sweep", "serve", "debug", "eval", "optimize-prompt", "check", "plan")
UNREACHABLE = (errno.EACCES, errno.ENAMETOOLONG, errno.ELOOP)
"""The errors of a path that the system does not look up; pathlib raises them where it answers False
for a path that is not there."""
READS_NO_PATHS = ("schema", "--help", "-h")
DASHED_OVERRIDE = re.compile(r"--?[A-Za-z_]\w*(\.\w+)+(=.*)?", re.DOTALL)
TAKES_A_VALUE = ("--conf", "--backbone", "--exp-dir", "--project-dir", "--debug", "--db")


def load_command(name: str, address: str) -> Any:
    """Imports `module:function` and returns it as a command of click's."""
    module, _, function = address.partition(":")
    command = as_command(name, getattr(import_module(module), function))
    if name not in WITHOUT_JSON:
        command.params.append(as_command(name, _with_json).params[0])
    return command


def _with_json(
    as_json: Annotated[
        bool,
        typer.Option(
            FLAG,
            help="Print one JSON document (docs/json.md), and all else to stderr.",
            expose_value=False,  # `Launcher.main` has read it by then
        ),
    ] = False,
) -> None: ...


def as_command(name: str, function: Callable[..., Any]) -> Any:
    """Returns a function as a command of click's."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name)(function)
    return get_command(app)


class Subcommands(TyperGroup):
    """A group such as `ajet inspect`; its commands are imported on use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(SUBCOMMANDS[str(self.name)])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        address = SUBCOMMANDS[str(self.name)].get(cmd_name)
        return None if address is None else load_command(cmd_name, address)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        commands = SUBCOMMANDS[str(self.name)]
        if not args[0].startswith("-") and args[0] not in commands:
            meant = {name: name for name in commands}
            for former, words in FORMER_NAMES.items():  # people try `ajet inspect env-check`
                group, _, name = words.partition(" ")
                if group == self.name:
                    meant[former] = name
            raise NoSuchCommand(no_such_command(args[0], meant), ctx)
        return super().resolve_command(ctx, args)


class Launcher(TyperGroup):
    """Finds the command of a command line, trains when there is none, and reports errors in one
    line."""

    def main(self, args: Sequence[str] | None = None, *others: Any, **settings: Any) -> Any:
        words = sys.argv[1:] if args is None else [*args]
        if FLAG not in words:
            return super().main(args, *others, **settings)
        with json_document() as document:
            try:
                ended = super().main(args, *others, **settings | {"standalone_mode": False})
                document.exit_code = ended if isinstance(ended, int) else 0
            except UsageError as error:
                error.show()
                document.exit_code = error.exit_code
            except typer.Abort:  # the end of a terminal's input
                document.exit_code = 1
            except AjetError as error:
                add_error(error)
                raise
            except Exception as error:
                add_problem(one_line(error), None)
                raise
        raise SystemExit(document.exit_code)

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *plugin_commands()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        name, _, subcommand = FORMER_NAMES.get(cmd_name, cmd_name).partition(" ")
        if subcommand:
            return load_command(cmd_name, SUBCOMMANDS[name][subcommand])
        row = COMMANDS.get(name)
        if isinstance(row, Group):
            return Subcommands(
                name=cmd_name,
                help=row.help,
                no_args_is_help=True,
                rich_markup_mode=None,
                context_settings=HELP_OPTIONS,
            )
        if row is not None:
            return load_command(cmd_name, row)
        if cmd_name in plugin_commands():
            return as_command(cmd_name, load_plugin(PLUGIN_COMMANDS, cmd_name, FunctionType))
        return None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, COMMANDS))
        installed = plugin_commands()
        sections = {**SECTIONS} | ({"Of other packages": installed} if installed else {})
        for title, section in sections.items():
            rows = []
            for name in section:
                try:
                    about = self.get_command(ctx, name).get_short_help_str(80)
                except ConfigError as error:  # one package's command; the others have their help
                    about = str(error)
                rows.append((typer.style(name.ljust(width), fg="cyan"), about))
            with formatter.section(typer.style(title, bold=True)):
                formatter.write_dl(rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.obj = {
            "traceback": "--verbose" in args or bool(os.environ.get("AJET_TRACEBACK")),
            "reads_paths": reads_paths(args),
        }
        if ctx.resilient_parsing:  # the shell completes a line that is not yet whole
            return super().parse_args(ctx, command_first(args))
        with _errors_in_one_line(ctx), _usage_errors_with_code():
            if (mistake := mistyped_command(args)) is not None:
                raise NoSuchCommand(mistake, ctx)
            if (mistake := override_with_dashes(args)) is not None:
                raise DashedOverride(mistake, ctx)
            args = command_first(args)
            if (document := current_document()) is not None:
                # The present name: "inspect audit" for "audit".
                name = FORMER_NAMES.get(args[0], args[0]) if args else ""
                words = [name, *args[1:2]] if name in SUBCOMMANDS else [name]
                document.command = " ".join(words)
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _errors_in_one_line(ctx), _usage_errors_with_code():
            if ctx.obj["reads_paths"]:
                try:
                    Path.cwd()
                except OSError as error:
                    raise ConfigError(
                        f"the current folder cannot be read ({error.strerror}): was it removed, or "
                        "made anew? Go to one that exists: cd DIR",
                        code=Code.CURRENT_FOLDER_GONE,
                    ) from error
            return super().invoke(ctx)


@contextmanager
def _errors_in_one_line(ctx: Any) -> Iterator[None]:
    """Prints the user's error in one line and exits with code 1; --verbose shows the traceback."""
    try:
        yield
    except AjetError as error:
        if ctx.obj["traceback"]:
            raise
        _end_with(error, error)
    except (OSError, RuntimeError) as error:
        # Until Python 3.12 pathlib raises RuntimeError for links that lead in a circle.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError) or ctx.obj["traceback"]:
            raise
        if cause.errno not in UNREACHABLE or cause.filename is None:
            raise
        line = (
            f"{cause.filename}: {cause.strerror}: give another path, or the right to search "
            "the folders above it"
        )
        _end_with(ConfigError(line, code=Code.PATH_UNREACHABLE), error)
    except ModuleNotFoundError as error:
        advice = extra_advice(error.name or "")
        if ctx.obj["traceback"] or not advice:
            raise
        command = f"ajet {ctx.invoked_subcommand}"
        line = f"{command} needs {error.name}, which is not installed: {advice}"
        _end_with(PackageMissing(line), error)


def _end_with(error: AjetError, cause: Exception) -> NoReturn:
    add_error(error)
    typer.echo(printable(redact(f"error: {error.with_code()}")), err=True)
    raise typer.Exit(1) from cause


@contextmanager
def _usage_errors_with_code() -> Iterator[None]:
    """Adds the code to the message of an error of usage that typer raises."""
    try:
        yield
    except UsageError as error:
        code = CODES_OF_USAGE.get(type(error).__name__, Code.OPTION_VALUE)
        if code is None:
            raise
        # typer writes choices a line each, and pydantic's words before some messages.
        message = " ".join(error.format_message().replace("Value error, ", "").split())
        add_problem(message, code)
        raise UsageError(f"{message} [{code}]", error.ctx) from error


def is_command(word: str) -> bool:
    """Tells whether this is a command, by its name or its former name, or one of a package's."""
    return word in COMMANDS or word in FORMER_NAMES or word in plugin_commands()


def plugin_commands() -> Mapping[str, EntryPoint]:
    """Returns other packages' commands. Raises ConfigError where one has a name of ajet's."""
    refuse_names([*COMMANDS, *FORMER_NAMES], PLUGIN_COMMANDS)
    return plugins(PLUGIN_COMMANDS)


def command_first(args: Sequence[str]) -> list[str]:
    """Moves the command to the front: `--conf x check` becomes `check --conf x`; without one it is
    `train`."""
    if not args or args[0] in ROOT_OPTIONS:
        return list(args)
    for index, arg in _positional_arguments(args):
        if is_command(arg):
            return [arg, *args[:index], *args[index + 1 :]]
    return ["train", *args]


def reads_paths(args: Sequence[str]) -> bool:
    """Tells whether the command line reads paths below the current folder. Of `why` only a run's
    folder is one, not a code."""
    if {*READS_NO_PATHS} & {*args}:
        return False
    return not {"why", "explain"} & {*args} or any("/" in arg for arg in args)


def mistyped_command(args: Sequence[str]) -> str | None:
    """Returns the message for a positional argument that looks like a mistyped command, or None."""
    positionals = _positional_arguments(args)
    commands = [arg for _, arg in positionals if is_command(arg)]
    is_config = [arg for _, arg in positionals if arg.endswith((".yaml", ".yml"))]
    if is_config and "--conf" not in args and (not commands or commands[0] in TAKES_A_CONFIG):
        words = " ".join(["ajet", *commands[:1], "--conf", is_config[0]])
        return f"{is_config[0]!r} is a config, not a command: write {words}"
    words = [arg for index, arg in positionals if not index or not args[index - 1].startswith("-")]
    if commands and commands[0] in TAKES_A_CONFIG and len(commands) > 1 and commands[1] in words:
        return f"two commands: {commands[0]!r} and {commands[1]!r}; give one of them"
    if commands:
        return None
    for index, arg in positionals:
        if index and args[index - 1].startswith("-"):
            continue  # it may be the value of an option
        commands = {name: name for name in COMMANDS}
        commands |= {name.rpartition(" ")[2]: name for name in FORMER_NAMES.values()}
        if index == 0 or get_close_matches(arg, commands, 1):
            return no_such_command(arg, commands)
    return None


def no_such_command(word: str, commands: Mapping[str, str]) -> str:
    """Names the closest command, or all of them. Maps what people type to the command they mean."""
    close = get_close_matches(word, commands, 1)
    if close:
        return f"no such command: {word!r}; did you mean {commands[close[0]]!r}?"
    return f"no such command: {word!r}; there are {', '.join(dict.fromkeys(commands.values()))}"


def override_with_dashes(args: Sequence[str]) -> str | None:
    """Says what to write for an override that was written as an option; None where none was.
    No option of ajet has a dot in its name."""
    for index, arg in enumerate(args):
        if DASHED_OVERRIDE.fullmatch(arg):
            following = args[index + 1] if index + 1 < len(args) else ""
            takes_next = "=" not in arg and following and not following.startswith("-")
            override = arg.lstrip("-") + (f"={following}" if takes_next else "")
            return f"{arg}: overrides have no dashes: write {override}"
    return None


def _positional_arguments(args: Sequence[str]) -> list[tuple[int, str]]:
    """Returns the arguments that are neither options, nor their values, nor overrides, with their
    indices."""
    return [
        (index, arg)
        for index, arg in enumerate(args)
        if not arg.startswith(("-", "+", "~"))
        and "=" not in arg
        and (index == 0 or args[index - 1] not in TAKES_A_VALUE)
    ]


def _print_version(is_given: bool) -> None:
    if is_given:
        from importlib.metadata import version

        typer.echo(f"ajet {version('ajet')}")
        raise typer.Exit


app = typer.Typer(
    cls=Launcher,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich alone takes longer to import than typer
    context_settings=HELP_OPTIONS,
)


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_print_version, is_eager=True
    ),
) -> None:
    """Train the language model behind your agent.

    `ajet --conf X.yaml [OPTIONS] [KEY=VALUE]...` is `ajet train --conf X.yaml …`;
    `ajet train --help` lists its options. An error ends with its code in brackets: `ajet why
    CODE` says what it means and what to do.
    """


def _print_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Prints the traceback of an error that nobody expected, without secrets."""
    sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))


def main() -> None:
    """Runs the command line; it is the console script's entry point."""
    sys.excepthook = _print_traceback
    exit_code = 1
    try:
        app(prog_name="ajet")
    except SystemExit as end:
        exit_code = end.code if isinstance(end.code, int) else 0
        raise
    finally:
        end_within(exit_code)


if __name__ == "__main__":
    main()
