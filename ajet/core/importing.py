"""The user's classes, from the config's strings, in one function.

    package.module->Class      imported with the project's folders on sys.path
    path/file.py->Class        relative to the YAML's folder, then to the current folder

A file is keyed by its real path: two files named workflow.py are two modules. The file's own folder
is on sys.path, so it may import what lies beside it (later too, inside a function). Every
mistake is one line with file and line. Not covered: a file that changes
while the run goes on.
"""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import ajet
from ajet.core.errors import ConfigError

ARROW = "->"


T = TypeVar("T")
R = TypeVar("R")


def load_object(spec: str, *, base_dirs: Sequence[Path], kind: type[T], where: str) -> type[T]:
    """The class that `spec` names; `where` is the config key, for the message."""
    place, arrow, name = (part.strip() for part in spec.partition(ARROW))
    if not (place and arrow and name):
        raise ConfigError(f"{where}: {spec!r}: write file.py->Class or package.module->Class")
    search = list(dict.fromkeys([*map(_real, base_dirs), Path.cwd()]))
    try:
        module = _from_file(place, search) if place.endswith(".py") else _from_module(place, search)
    except ConfigError as error:
        raise ConfigError(f"{where}: {spec!r}: {error}") from error.__cause__
    return _class(module, name, kind, f"{where}: {spec!r}")


def add_to_path(folders: Sequence[Path]) -> None:
    """Put folders on sys.path, behind what is there, in order; worker processes do the same."""
    for folder in map(str, folders):
        if folder not in sys.path:
            sys.path.append(folder)


@contextmanager
def _in_front(folders: Sequence[Path]) -> Iterator[None]:
    """The folders come first on sys.path while the user's module loads, and last ever after: a
    `types.py` beside a workflow must not hide what a library imports later."""
    add_to_path(folders)
    front = [str(folder) for folder in folders]
    sys.path[:0] = front
    try:
        yield
    finally:
        for folder in front:
            sys.path.remove(folder)


def _real(folder: Path) -> Path:
    return Path(folder).resolve()


def _from_file(place: str, search: Sequence[Path]) -> ModuleType:
    path = Path(place).expanduser()
    candidates = list(dict.fromkeys((folder / path).resolve() for folder in search))
    found = next((file for file in candidates if file.is_file()), None)
    if found is None:
        tried = ", ".join(map(str, candidates))
        raise ConfigError(f"no such file; looked for {tried}")
    name = f"ajet_user_{found.stem}_{sha256(str(found).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, found)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _in_front([found.parent, *search]):
            _run(partial(spec.loader.exec_module, module), found.name)
    except ConfigError:
        del sys.modules[name]
        raise
    return module


def _from_module(place: str, search: Sequence[Path]) -> ModuleType:
    if place in sys.modules:
        return sys.modules[place]
    try:
        with _in_front(search):
            return _run(partial(importlib.import_module, place), place)
    except ConfigError as error:
        elsewhere = _in_other_package(place, error.__cause__)
        if elsewhere is not None:
            return elsewhere
        if _is_absent(place, error.__cause__):
            folders = ", ".join(map(str, search))
            raise ConfigError(
                f"no module {_missing(error.__cause__)!r}; looked in the installed packages and "
                f"{folders}. Run from the project's root or pass --project-dir"
            ) from error.__cause__
        raise


def _missing(cause: BaseException | None) -> str | None:
    return cause.name if isinstance(cause, ModuleNotFoundError) else None


def _is_absent(place: str, cause: BaseException | None) -> bool:
    """Whether the module itself is not there, and not something that it imports."""
    missing = _missing(cause)
    return missing is not None and (place == missing or place.startswith(f"{missing}."))


def _in_other_package(place: str, cause: BaseException | None) -> ModuleType | None:
    """`tutorial.x` where a `tutorial` folder found first hides the package that has `x`."""
    if not _is_absent(place, cause) or "." not in place:
        return None
    relative = Path(*place.split("."))
    for folder in map(Path, [*sys.path, Path(__file__).resolve().parents[2]]):
        for file in (folder / relative.with_suffix(".py"), folder / relative / "__init__.py"):
            if file.is_file():
                return _from_file(str(file), [folder])
    return None


def _run(action: Callable[[], R], subject: str) -> R:
    """Run the user's module; whatever it raises becomes one line with file and line."""
    try:
        return action()
    except SyntaxError as error:
        raise ConfigError(f"{error.filename}:{error.lineno}: syntax error: {error.msg}") from error
    except ModuleNotFoundError as error:
        place = _place_of(error) or subject
        raise ConfigError(f"{place}: it imports {error.name!r}, which is not installed") from error
    except Exception as error:  # the user's module may raise anything as it loads
        place = _place_of(error) or subject
        raise ConfigError(f"{place}: {type(error).__name__}: {_one_line(error)}") from error


def _place_of(error: BaseException) -> str | None:
    """file:line of the deepest frame that is neither Python's import system nor this module."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
    return f"{ours[-1].filename}:{ours[-1].lineno}" if ours else None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _class(module: ModuleType, name: str, kind: type[T], prefix: str) -> type[T]:
    found = getattr(module, name, None)
    file = module.__file__ or module.__name__
    if found is None:
        classes = [key for key, value in vars(module).items() if inspect.isclass(value)]
        own = [key for key in classes if getattr(module, key).__module__ == module.__name__]
        close = get_close_matches(name, own or classes, 1)
        listed = f"it has {', '.join(own)}" if own else "it defines no class"
        hint = f"did you mean {close[0]!r}?" if close else listed
        raise ConfigError(f"{prefix}: {file} has no class {name!r}; {hint}")
    if not inspect.isclass(found):
        raise ConfigError(f"{prefix}: {name!r} in {file} is a {type(found).__name__}, no class")
    if not issubclass(found, kind):
        line = inspect.getsourcelines(found)[1]
        base = f"{'ajet' if hasattr(ajet, kind.__name__) else kind.__module__}.{kind.__name__}"
        raise ConfigError(
            f"{prefix}: {file}:{line}: {name} is not a {kind.__name__}; derive it from {base}"
        )
    return found
