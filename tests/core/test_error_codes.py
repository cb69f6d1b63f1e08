"""The codes of errors: each raise has one, each is raised, and none ever changes its meaning."""

import ast
import pickle
import re
import runpy
from functools import cache
from pathlib import Path

from ajet.cli.launcher import COMMANDS
from ajet.core.config.section import leaves
from ajet.core.config.tree import AjetConfig
from ajet.core.errors import ConfigError, RunComplete, TraceError
from ajet.core.errors.codes import AREAS, Code, codes_by_area

ROOT = Path(__file__).parents[2]
COMMITTED = Path(__file__).with_name("error_codes.txt")


@cache
def sources() -> dict[Path, ast.Module]:
    """Returns the package's files, parsed when a test first asks: every process of a parallel run
    imports this file, and one of them runs it."""
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(ROOT.glob("ajet/**/*.py"))}


def error_classes() -> dict[str, bool]:
    """The classes of errors: whether one, or its base, has its usual code."""
    classes = [
        n for tree in sources().values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)
    ]
    found = {"AjetError": False}
    for _ in range(4):  # a class may stand before its base
        for each in classes:
            bases = [base.id for base in each.bases if isinstance(base, ast.Name)]
            if each.name != "AjetError" and any(base in found for base in bases):
                has_own = any("usual_code" in ast.unparse(statement) for statement in each.body)
                found[each.name] = has_own or any(found.get(base, False) for base in bases)
    return found


def test_every_error_of_the_package_says_its_kind():
    classes = error_classes()
    assert classes["WeightsError"] and not classes["ModelError"]
    without = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.func.id}"
        for path, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and not classes.get(node.func.id, True)
        and not any(keyword.arg == "code" for keyword in node.keywords)
    ]
    assert without == []


def test_every_kind_is_used_somewhere():
    used = {
        node.attr
        for path, tree in sources().items()
        if path.name != "error_codes.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "Code"
    }
    assert {code.name for code in Code} - used == set()


def test_a_code_never_changes_its_meaning():
    """Lines are added to the list, and none is changed or removed."""
    lines = COMMITTED.read_text("utf-8").splitlines()
    assert len(lines) == len(set(lines)) == len({line.split()[0] for line in lines})
    assert {f"{code} {code.name}" for code in Code} == set(lines)


def test_a_code_is_of_an_area_and_its_row_is_whole_sentences():
    assert sum(len(codes) for codes in codes_by_area().values()) == len(Code) >= 100
    for code in Code:
        area = re.fullmatch(r"AJ-([A-Z]{3})-\d{3}", code.value)
        assert area and area[1] in AREAS, code
        assert code.meaning.endswith("."), code
        assert code.remedy[0] in "`'" or code.remedy[0].isupper(), code
        assert code.remedy.endswith((".", ")")) and code.causes, code
        assert not code.title.endswith("."), code


def test_a_kind_names_keys_and_commands_that_there_are():
    tree = AjetConfig()
    roots = {"ajet": tree.ajet, "verl": tree.verl, "trinity": tree.trinity}
    known = [leaf.path for root, section in roots.items() for leaf in leaves(section, root)]
    for code in Code:
        text = " ".join([code.meaning, code.causes, code.remedy])
        keys = re.findall(r"(?<![\w/])(?:ajet|verl|trinity)(?:\.[a-z_]+)+(?!\.py)", text)
        strange = [
            key for key in keys if not any(f"{each}.".startswith(f"{key}.") for each in known)
        ]
        commands = re.findall(r"`ajet ([a-z-]+)", text)
        assert (code, strange, set(commands) - {*COMMANDS, "--help"}) == (code, [], set())


def test_titles_tell_kinds_apart():
    assert len({code.title for code in Code}) == len(Code)


def test_the_page_of_errors_is_that_of_the_catalogue():
    page = runpy.run_path(str(ROOT / "scripts" / "errors_page.py"))["page"]().rstrip("\n") + "\n"
    assert (ROOT / "docs" / "errors.md").read_text("utf-8") == page
    assert [code.value for code in Code if page.count(f"\n### {code}\n") != 1] == []


def test_the_code_ends_the_first_line_and_not_the_message():
    error = ConfigError("2 mistakes:\n  one\n  two", code=Code.SEVERAL_MISTAKES)
    assert str(error) == "2 mistakes:\n  one\n  two"
    assert error.with_code() == "2 mistakes: [AJ-CFG-014]\n  one\n  two"
    assert RunComplete("done").with_code() == "done [AJ-RUN-005]"


def test_an_error_of_a_users_own_code_has_a_kind_too():
    assert ConfigError("no rows in db").code is Code.RAISED_BY_OWN_CODE


def test_an_error_keeps_its_kind_on_its_way_to_another_process():
    error = pickle.loads(pickle.dumps(ConfigError("x", code=Code.UNKNOWN_KEY)))
    assert (type(error), str(error), error.code) == (ConfigError, "x", Code.UNKNOWN_KEY)
    assert pickle.loads(pickle.dumps(TraceError("y"))).code is Code.TRACES_NOT_TAKEN
