"""Imports the classes, functions and modules that a config names: package.module->Class with the
project's folders on sys.path, path/file.py->Class from the YAML's folder, then the current one.

Two files named workflow.py are two modules, and each can import helpers from its folder, even if
both have a helper.py. (An import inside a function finds one of the two for both files.)
"""

import ast
import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from ajet.core.errors import AjetError, ConfigError, PackageMissing, WrongKind
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import did_you_mean, extra_advice, message_of, windows_advice
from ajet.core.text.plain_value import printable, type_name
from ajet.core.user_code.plugins import plugins

ARROW = "->"
USER_MODULE = "ajet_user_"
"""How the name of a module begins that is a file of the user's."""
INSTALLED = tuple(
    f"{folder}/"
    for folder in (*map(sysconfig.get_path, ("stdlib", "purelib")), Path(__file__).parents[2])
)

MAX_SHOWN = 2000
"""The number of characters to which a message of the user's code is cut."""

T = TypeVar("T")
R = TypeVar("R")

_user_folders: set[Path] = set()
_hidden_modules: dict[Path, dict[str, ModuleType]] = {}
"""The modules of a user's folder that are out of sys.modules, because another folder has the same
names."""


class ExamplesFinder:
    """Finds `tutorial.x` in ajet.examples if no folder on sys.path has it, so that configs of
    examples also work with an installed wheel."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        top, *below = name.split(".")
        packaged = importlib.util.find_spec("ajet.examples") if top == "tutorial" else None
        if packaged is None or not packaged.submodule_search_locations:
            return None
        folder = Path(packaged.submodule_search_locations[0])
        if not below:
            return importlib.util.spec_from_file_location(
                name, folder / "__init__.py", submodule_search_locations=[str(folder)]
            )
        return PathFinder.find_spec(name, [str(folder.joinpath(*below[:-1]))])


if ExamplesFinder not in sys.meta_path:
    sys.meta_path.append(ExamplesFinder)


def load_object(spec: str, *, base_dirs: Sequence[Path], base: type[T], location: str) -> type[T]:
    """Returns the class that `spec` names. `location` is the config key, for error messages."""
    source, name = _split_spec(spec, "Class", location)
    module = _load(source, base_dirs, f"{location}: {spec!r}")
    return _find_class(module, name, base, f"{location}: {spec!r}")


def load_function(spec: str, *, base_dirs: Sequence[Path], location: str) -> Callable[..., Any]:
    """Returns the function that `spec` names: file.py->name or package.module->name."""
    return load_attribute(spec, base_dirs=base_dirs, location=location, expected="function")


def load_attribute(
    spec: str, *, base_dirs: Sequence[Path], location: str, expected: str = "function or class"
) -> Any:
    """Returns what `spec` names: file.py->name or package.module->name. `expected` says in error
    messages what it should be."""
    source, name = _split_spec(spec, expected, location)
    module = _load(source, base_dirs, f"{location}: {spec!r}")
    value = getattr(module, name, None)
    if value is None:
        is_named = inspect.isroutine if expected == "function" else callable
        names = [key for key, value in vars(module).items() if is_named(value)]
        close = get_close_matches(name, names, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"{location}: {spec!r}: {source} has no {expected} {name!r}{hint}",
            code=Code.OWN_NAME_NOT_FOUND,
        )
    if expected == "function" and (not callable(value) or inspect.isclass(value)):
        type_text = "class" if inspect.isclass(value) else type(value).__name__
        raise WrongKind(f"{location}: {spec!r}: {name!r} is a {type_text}, not a function")
    return value


def as_import_spec(spec: str) -> str:
    """Returns verl's `package.module.Class` as `package.module->Class`."""
    if "->" in spec or "." not in spec:
        return spec
    module, _, name = spec.rpartition(".")
    return f"{module}->{name}"


def load_module(source: str, *, base_dirs: Sequence[Path], location: str) -> ModuleType:
    """Imports and returns the module file.py or package.module."""
    return _load(source, base_dirs, f"{location}: {source!r}")


def arrow_form(spec: str) -> str | None:
    """Returns what to write for other tools' ``file.py:Name`` or ``file.py.Name``, and for
    ``file.py-``, which is left of ``file.py->Name`` in a shell without quotes; else None."""
    if match := re.fullmatch(r"(.+\.py)[:.](\w+)", spec):
        return f"{match[1]}{ARROW}{match[2]}"
    if match := re.fullmatch(r"(.+\.py|\w+(?:\.\w+)+)-", spec):
        return f"'{match[1]}{ARROW}Name' in quotes: without them a shell takes > for a redirection"
    return None


def _split_spec(spec: str, expected: str, location: str) -> tuple[str, str]:
    source, arrow, name = (part.strip() for part in spec.partition(ARROW))
    if not (source and arrow and name):
        form = arrow_form(spec) or f"file.py->{expected} or package.module->{expected}"
        raise ConfigError(f"{location}: {spec!r}: write {form}", code=Code.OWN_SPEC_FORM)
    return source, name


def _load(source: str, base_dirs: Sequence[Path], prefix: str) -> ModuleType:
    search = list(dict.fromkeys([*(Path(folder).resolve() for folder in base_dirs), Path.cwd()]))
    load = _import_file if source.endswith(".py") else _import_module
    try:
        return load(source, search)
    except ConfigError as error:
        raise ConfigError(f"{prefix}: {error}", code=error.code) from error.__cause__


def construct(cls: type[T], config: Any, location: str) -> T:
    """Creates the object of a user's class: `cls(config)`, or `cls()` if it takes no argument."""
    for args in ((config,), ()):
        if _accepts(cls, len(args)):
            return run_user_code(partial(cls, *args), location)
    text = f"is made as {cls.__name__}(config): give the other arguments of its __init__ defaults"
    raise _definition_error(cls, cls.__name__, text, location, Code.OWN_SIGNATURE)


def require_method(
    cls: type, name: str, base: type, arguments: Sequence[str], location: str
) -> None:
    """Raises ConfigError unless `cls` defines or inherits an implementation of the method `name` of
    `base` that takes these arguments."""
    listed = ", ".join(arguments)
    signature = f"{name}(self, {listed})"
    if cls is base:
        raise WrongKind(
            f"{location}: names {base.__name__} itself: name your class derived from it"
        )
    if getattr(cls, name, None) in (None, getattr(base, name)):
        text = f"does not define {signature}"
        raise _definition_error(cls, cls.__name__, text, location, Code.OWN_METHOD_MISSING)
    is_bound = isinstance(inspect.getattr_static(cls, name), staticmethod | classmethod)
    if not _accepts(getattr(cls, name), len(arguments) + (not is_bound)):
        text = f"cannot be called with ({listed}): write {signature}"
        raise _definition_error(cls, f"{cls.__name__}.{name}", text, location, Code.OWN_SIGNATURE)


def require_methods(cls: type, names: Sequence[str], base: type, location: str) -> None:
    """Raises ConfigError unless `cls` has these methods; it need not derive from `base`."""
    missing = [name for name in names if not callable(getattr(cls, name, None))]
    if missing:
        text = f"has no {' and no '.join(missing)}: derive it from ajet.{base.__name__}, or write "
        text += ", ".join(names)
        raise _definition_error(cls, cls.__name__, text, location, Code.OWN_METHOD_MISSING)


def require_no_arguments(cls: type, location: str) -> None:
    """Raises ConfigError unless `cls()` can be called."""
    if not _accepts(cls, 0):
        text = f"is made as {cls.__name__}(): give the arguments of its __init__ defaults"
        raise _definition_error(cls, cls.__name__, text, location, Code.OWN_SIGNATURE)


def require_arguments(
    function: Callable[..., Any], arguments: Sequence[str], location: str
) -> None:
    """Raises ConfigError unless the function can be called with these arguments."""
    if not _accepts(function, len(arguments)):
        name, listed = getattr(function, "__name__", "it"), ", ".join(arguments)
        text = f"cannot be called with ({listed}): write {name}({listed})"
        raise _definition_error(function, name, text, location, Code.OWN_SIGNATURE)


def _definition_error(code: Any, name: str, text: str, location: str, error: Code) -> ConfigError:
    return ConfigError(f"{location}: {line_of(code)}: {name} {text}", code=error)


def require_package(name: str, *, wanted_by: str) -> None:
    """Raises ConfigError with the install command if the package is missing."""
    if sys.modules.get(name) is None and (
        name in sys.modules or importlib.util.find_spec(name) is None
    ):
        raise PackageMissing(f"{wanted_by} needs {name}: {extra_advice(name)}")


def run_user_code(action: Callable[[], R], location: str) -> R:
    """Returns the result of `action`. Whatever the user's code raises becomes a ConfigError of one
    line: `location` (a config key), file and line, message."""
    try:
        return action()
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise ConfigError(
            f"{location}: {_describe(error)}", code=Code.OWN_CONSTRUCTOR_FAILS
        ) from error


def add_to_path(folders: Sequence[Path]) -> None:
    """Appends folders to sys.path, in order; worker processes do the same."""
    for folder in map(str, folders):
        if folder not in sys.path:
            sys.path.append(folder)


@contextmanager
def _first_on_path(folders: Sequence[Path]) -> Iterator[None]:
    """Puts the folders first on sys.path while the user's module loads, and last from then on: a
    `types.py` next to a workflow must not hide the standard one from later imports."""
    add_to_path(folders)
    front = [str(folder) for folder in folders]
    sys.path[:0] = front
    try:
        yield
    finally:
        for folder in front:
            sys.path.remove(folder)


def _import_file(source: str, search: Sequence[Path]) -> ModuleType:
    path = Path(source).expanduser()
    candidates = list(dict.fromkeys((folder / path).resolve() for folder in search))
    file = next((file for file in candidates if file.is_file()), None)
    if file is None:
        tried = ", ".join(map(str, candidates))
        raise ConfigError(
            f"no such file; looked for {tried}{windows_advice(source)}",
            code=Code.OWN_FILE_NOT_FOUND,
        )
    name = f"{USER_MODULE}{file.stem}_{sha256(str(file).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    # The steps of `import`, with a name that the path determines.
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    _prefer_folder(file.parent, search)
    sys.modules[name] = module
    try:
        with _first_on_path([file.parent, *search]):
            _load_user_module(partial(spec.loader.exec_module, module), file.name)
    except ConfigError:
        del sys.modules[name]
        raise
    return module


def _import_module(source: str, search: Sequence[Path]) -> ModuleType:
    if source in sys.modules:
        return sys.modules[source]
    try:
        with _first_on_path(search):
            return _load_user_module(partial(importlib.import_module, source), source)
    except ConfigError as error:
        cause = error.__cause__
        missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
        if missing is None or not f"{source}.".startswith(f"{missing}."):
            raise  # the module is there, and fails or imports something that is missing
        # Another `folder`, earlier on the path and without `x`, may hide `folder.x`.
        relative = Path(*source.split("."))
        for folder in map(Path, sys.path if "." in source else ()):
            for file in (folder / relative.with_suffix(".py"), folder / relative / "__init__.py"):
                if file.is_file():
                    return _import_file(str(file), [folder])
        folders = ", ".join(map(str, search))
        raise ConfigError(
            f"no module {missing!r}; looked in the installed packages and {folders}. Run from the "
            "project's root or pass --project-dir",
            code=Code.OWN_FILE_NOT_FOUND,
        ) from cause


def forget_user_modules() -> None:
    """Makes the next import of each of the user's modules read its file again, for a process that
    has one run after another."""
    folders = tuple(f"{folder}/" for folder in _user_folders)
    for name, module in list(sys.modules.items()):
        file = str(getattr(module, "__file__", None))
        if name.partition(".")[0] in ("ajet", "__main__") or not file.startswith(folders):
            continue
        if name.startswith(USER_MODULE) or _import_folder(name, module) in _user_folders:
            del sys.modules[name]
    _hidden_modules.clear()


def _prefer_folder(folder: Path, search: Sequence[Path]) -> None:
    """Makes `import helper` find the file in `folder`, even if a helper of another user's folder is
    already imported. Modules that imported the other one keep it."""
    _user_folders.update([folder, *search])
    # For each name that this folder defines: take modules of that name from other folders out of
    # sys.modules. They come back in the last line when their folder is preferred again.
    for name in {e.stem for e in folder.iterdir() if e.suffix == ".py" or e.is_dir()} - {"ajet"}:
        modules = {key: m for key, m in sys.modules.items() if key.partition(".")[0] == name}
        folders = {_import_folder(key, module) for key, module in modules.items()}
        for import_folder in (_user_folders & folders) - {folder}:
            _hidden_modules.setdefault(import_folder, {}).update(modules)
            for key in modules:
                sys.modules.pop(key, None)
    sys.modules.update(_hidden_modules.pop(folder, {}))


def _import_folder(name: str, module: ModuleType) -> Path | None:
    """Returns the folder that was on sys.path when `name` was imported."""
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    source = Path(file).resolve()
    # One level up for each dot of the name, and one more out of a package's folder.
    return source.parents[name.count(".") + (source.name == "__init__.py")]


def _load_user_module(action: Callable[[], R], subject: str) -> R:
    """Loads the user's module; whatever it raises becomes a ConfigError of one line."""
    try:
        return action()
    except SystemExit as error:
        raise ConfigError(
            f'{_describe(error, subject)} while it loads; put that under if __name__ == "__main__"',
            code=Code.OWN_FILE_FAILS,
        ) from error
    except Exception as error:  # the user's module may raise anything as it loads
        raise ConfigError(_describe(error, subject), code=Code.OWN_FILE_FAILS) from error


def _describe(error: BaseException, subject: str | None = None) -> str:
    """Returns the line of the user's code that raised an error, and the error; `subject` replaces
    an unknown line."""
    if isinstance(error, SyntaxError):
        line = f":{error.lineno}" if error.lineno else ""
        return f"{error.filename or subject}{line}: syntax error: {error.msg}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        frames = _frames(error)
        advice = _advice_for(error.name.partition(".")[0], frames)
        message = f"it imports {error.name!r}, which is not installed{advice}"
        return _with_location(frames, subject, message)
    frames = _frames(error)
    user_frames = [f for f in frames if not f.filename.startswith(("<", *INSTALLED))]
    if isinstance(error, SystemExit):
        message = "it calls sys.exit()"
    elif isinstance(error, AjetError):
        message = _one_line(error)
    else:
        message = f"{type_name(type(error))}: {_one_line(error)}".removesuffix(": ")
    return _with_location(user_frames or frames, subject, message)


def _advice_for(package: str, frames: Sequence[traceback.FrameSummary]) -> str:
    """Returns what to do about a missing package, after a colon, or nothing."""
    compat = plugins("ajet.compat")
    if package in compat:
        module = compat[package].value
        names = _imported_names(frames[-1]) if frames else []
        lacking = [name for name in names if not hasattr(importlib.import_module(module), name)]
        if not lacking:
            return f": import its names from {module}"
        rest = "" if lacking == names else f", and import the others from {module}"
        return f": {module} has no {', '.join(lacking)}: write it yourself{rest}"
    advice = extra_advice(package)
    return f": {advice}" if advice else ""


def _imported_names(frame: traceback.FrameSummary) -> list[str]:
    """Returns the names in the statement `from package import …` that a frame is executing."""
    try:
        tree = ast.parse(Path(frame.filename).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return []
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    line = frame.lineno or 0
    here = (
        statement
        for statement in statements
        if statement.lineno <= line <= (statement.end_lineno or line)
    )
    return [alias.name for statement in here for alias in statement.names]


def _with_location(
    frames: Sequence[traceback.FrameSummary], subject: str | None, message: str
) -> str:
    source = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else subject
    return f"{source}: {message}" if source else message


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Returns the error's frames outside of Python's import system and this module."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]


def _accepts(callee: Any, num_arguments: int) -> bool:
    """Returns True if `callee` takes this many positional arguments, or has no known signature."""
    try:
        inspect.signature(callee).bind(*[None] * num_arguments)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


def line_of(code: Any) -> str:
    """Returns file:line of a class or a method; only the file if no source line defines it."""
    code = inspect.unwrap(code)
    try:
        return f"{inspect.getsourcefile(code)}:{inspect.getsourcelines(code)[1]}"
    except (OSError, TypeError):
        return getattr(sys.modules.get(code.__module__), "__file__", None) or code.__module__


def _one_line(error: BaseException) -> str:
    text = printable(" ".join(message_of(error).split()))
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def _find_class(module: ModuleType, name: str, base: type[T], prefix: str) -> type[T]:
    is_public = hasattr(sys.modules["ajet"], base.__name__)
    base_name = f"{'ajet' if is_public else base.__module__}.{base.__name__}"
    derived = "" if base.__module__ == "builtins" else f", derived from {base_name},"
    value = getattr(module, name, None)
    file = getattr(module, "__file__", None) or module.__name__
    if value is None:
        classes = [key for key, value in vars(module).items() if inspect.isclass(value)]
        names = [key for key in classes if getattr(module, key).__module__ == module.__name__]
        listed = f"it has {', '.join(names)}" if names else "it defines no class"
        hint = did_you_mean(name, names or classes, listed)
        raise ConfigError(
            f"{prefix}: {file} has no class {name!r}; {hint}", code=Code.OWN_NAME_NOT_FOUND
        )
    if not inspect.isclass(value):
        raise WrongKind(
            f"{prefix}: {name!r} in {file} is a {type(value).__name__}, not a class"
            + f"; write a class{derived} that calls it" * callable(value)
        )
    if not issubclass(value, base):
        raise WrongKind(
            f"{prefix}: {line_of(value)}: {name} is not a {base.__name__}; derive it from "
            f"{base_name}"
        )
    return value
