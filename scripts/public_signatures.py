"""Writes the signatures of the public names, as the source states them.

    python scripts/public_signatures.py            prints them
    python scripts/public_signatures.py --write    updates docs/public_signatures.txt

The files are read and not imported: the text depends on no version of Python and on no extra. A
name is public if it is in `ajet.__all__`; so are the methods and fields of a class without an
underscore, and the fields that it inherits. Not covered: methods of a base that is not public.
"""

import argparse
import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import ajet

FILE = Path(__file__).parents[1] / "docs" / "public_signatures.txt"
SPECIAL = ("__init__", "__call__")


def public_signatures() -> str:
    """Returns a line for each public name, method and field."""
    return "\n".join(line for name in sorted(ajet.__all__) for line in _signature(name)) + "\n"


def _signature(name: str) -> Iterator[str]:
    for node in _parsed(ajet._HOMES[name]).body:
        match node:
            case ast.ClassDef() if node.name == name:
                bases = ", ".join(map(ast.unparse, [*node.bases, *node.keywords]))
                yield f"class {name}({bases})" if bases else f"class {name}"
                own = list(_members(node))
                inherited = _inherited(node, ajet._HOMES[name])
                written = {line.partition(":")[0] for line in own}
                own = [*(line for key, line in inherited.items() if key not in written), *own]
                yield from (f"    {line}" for line in own)
            case ast.FunctionDef() if node.name == name:
                yield _function(node)
            case ast.Assign(targets=[ast.Name(id=found)]) if found == name:
                yield ast.unparse(node)


def _parsed(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    assert spec and spec.origin
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _inherited(kind: ast.ClassDef, module: str) -> dict[str, str]:
    """Returns by name the fields of the class's bases in ajet."""
    fields: dict[str, str] = {}
    for base in reversed(kind.bases):
        if isinstance(base, ast.Name) and (found := _class(base.id, module)):
            fields |= _inherited(*found)
            lines = [_field(each) for each in found[0].body if isinstance(each, ast.AnnAssign)]
            fields |= {line.partition(":")[0]: line for line in lines if not line.startswith("_")}
    return fields


def _field(node: ast.AnnAssign) -> str:
    match node.annotation:
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, *_])):
            value = f" = {ast.unparse(node.value)}" if node.value else ""
            return f"{ast.unparse(node.target)}: {ast.unparse(kind)}{value}"
    return ast.unparse(node)


def _class(name: str, module: str) -> tuple[ast.ClassDef, str] | None:
    """Returns a class that this module has or imports from another one of ajet, and its module."""
    for node in _parsed(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node, module
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            source = node.module or ""
            return _class(name, source) if source.startswith("ajet.") else None
    return None


def _members(kind: ast.ClassDef) -> Iterator[str]:
    for node in kind.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                yield ast.unparse(node)
            case ast.Assign(targets=[ast.Name(id=name)]) if not name.startswith("_"):
                yield ast.unparse(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if (
                node.name in SPECIAL or not node.name.startswith("_")
            ):
                yield _function(node)


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    decorators = "".join(f"@{ast.unparse(each)} " for each in node.decorator_list)
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{decorators}{kind} {node.name}({ast.unparse(node.args)}){returns}"


def main() -> None:
    """Prints the signatures, or writes them into their file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    text = public_signatures()
    if parser.parse_args().write:
        FILE.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
