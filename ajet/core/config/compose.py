"""Composes a YAML and command-line overrides to plain data, from any folder.

    math_agent.yaml ──┐
    its `defaults:`  ─┼─ Hydra, or overlay.py where the defaults are the project's ── plain dict
    key=value …      ─┘

AgentJet's former section `astuner:` is read as `ajet:`.
The `hydra:`/`defaults:` boilerplate may be there or not: the project's defaults are always found
in the package, and folders of `hydra.searchpath` that exist are searched too. The order is that of
`defaults:`, or the project's defaults first where there is none; a YAML whose `defaults:` do not
name its own position (`_self_`) comes last.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ajet.core.config.agentjet_keys import FORMER_DEFAULTS, FORMER_SECTION
from ajet.core.config.blanks import refuse_blanks
from ajet.core.config.environment_reference import environment_references
from ajet.core.config.explain import Origin, leaves_of_that_name, mapping_and_list_problem
from ajet.core.config.nested import texts
from ajet.core.config.other_systems import recognise
from ajet.core.config.overlay import PACKAGED, overlaid
from ajet.core.config.overrides import hydra_override, override_key, unknown_override
from ajet.core.config.redacted import shown_override
from ajet.core.config.tree import AjetConfig, AjetSection
from ajet.core.config.unknown_sections import unknown_section_problem
from ajet.core.config.yaml_codec import root_of
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError

DEFAULTS = ["verl_default", "trinity_default", "ajet_default", "_self_"]
MAX_VALUES = 100_000
HYDRAS_OWN = (
    "output",
    "launcher",
    "sweeper",
    "help",
    "hydra_help",
    "hydra_logging",
    "job_logging",
    "env",
)
"""Names the groups of Hydra's own configuration. None of it is read here, and loading it takes a
quarter of the time of a composition."""
NAME = "__ajet_run__"
PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")
"""A name in a template of a YAML, as ``{{MODEL_PATH}}``."""
YAML_ADVICE = {
    "found character '\\t'": (False, "indent with spaces, not with a tab"),
    "mapping values are not allowed": (
        False,
        "indent the line as its neighbours are, and quote a value that has a colon",
    ),
    "expected <block end>": (False, "indent the line as its neighbours are"),
    "could not find expected ':'": (True, "write a key as `key: value`, with a space"),
    "expected ',' or": (True, "close the bracket, and quote a value that has a bracket in it"),
    "but found another document": (False, "leave out the line --- and what follows it"),
    "found unexpected end of stream": (True, "close the quote"),
}
"""Maps how a problem of the parser's begins to what to do, and to whether it is rather to be done
where the parser began the part that it did not understand."""


class Composed(NamedTuple):
    """Holds a composed YAML: plain data, by their paths the values that come from the environment,
    as ``${oc.env:NAME}``, and one line for each of Hydra's own settings that is not read."""

    values: dict[str, Any]
    references: dict[str, str]
    notices: list[str]


def compose(path: Path, overrides: Sequence[str]) -> Composed:
    """Returns the composed YAML with its interpolations resolved."""
    yaml_content = read_yaml(path)
    _refuse_other_systems(yaml_content, path)
    boilerplate = yaml_content.pop("hydra", None) or {}
    own_search_path = _own_search_path(boilerplate, path)
    defaults = _defaults(yaml_content.pop("defaults", None), path)
    parsed = [hydra_override(override) for override in overrides]
    refuse_blanks(yaml_content, overrides, path)
    origin = Origin(path, overrides)
    values, references = None, dict[str, str]()
    if not own_search_path:
        values = overlaid(yaml_content, defaults, parsed, origin)
    if values is None:
        yaml_content["defaults"] = _without_hydras_own(defaults)
        values, references = _composed_by_hydra(yaml_content, own_search_path, parsed, origin)
    values = {str(key): value for key, value in values.items()}
    return Composed(values, references, _hydra_notices(boilerplate))


def _refuse_other_systems(yaml_content: dict[str, Any], path: Path) -> None:
    """Raises ConfigError for a config of another system. One of ours may hold verl's sections
    beside `ajet:`, or have that section from its `defaults:`."""
    if "ajet" in yaml_content or "ajet" in str(yaml_content.get("defaults")):
        return
    for name, title, key in recognise(yaml_content):
        raise ConfigError(
            f"{path}: looks like a config of {title} (it has {key}); convert it: "
            f"ajet convert --from {name} {path} --out mine.yaml",
            code=Code.CONFIG_FORM,
        )


def _composed_by_hydra(
    yaml_content: dict[str, Any], own_search_path: list[str], parsed: list[str], origin: Origin
) -> tuple[dict[Any, Any], dict[str, str]]:
    """Returns the composed values, and the references of `Composed`."""
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException, MissingConfigException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from ajet.core.config.packaged_defaults import PackagedDefaults

    path, overrides = origin.path, origin.overrides
    packaged = [f"{PackagedDefaults.scheme()}://{folder.resolve()}" for folder in PACKAGED]
    search = {"searchpath": [*packaged, *own_search_path]}
    try:
        node = OmegaConf.create(yaml_content | {"hydra": search})
        ConfigStore.instance().store(name=NAME, node=node)
        composed = _hydra_compose(path, parsed)
        plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
        written = OmegaConf.to_container(composed, resolve=False)
    except MissingConfigException as error:
        raise ConfigError(_missing_config(path, error), code=Code.DEFAULTS_NOT_FOUND) from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        override = _failed_override(error, overrides)
        if override is None:
            typed = {"ajet": AjetSection().model_dump()}
            misplaced = mapping_and_list_problem(yaml_content, typed, origin)
            if misplaced:
                raise ConfigError(misplaced, code=Code.CONFIG_FORM) from error
            is_reference = "interpolation" in str(error).lower()
            code = Code.REFERENCE_FAILS if is_reference else Code.CONFIG_FORM
            raise ConfigError(_hydra_problem(error, origin), code=code) from error
        if "Could not override" in str(error) or "Could not delete" in str(error):
            composed_keys = OmegaConf.to_container(_hydra_compose(path, []), resolve=False)
            problem, code = _unknown_override_problem(override, composed_keys), Code.UNKNOWN_KEY
        elif "Error merging override" in str(error):
            problem = "a list is given for a section, or a section for a list"
            code = Code.CONFIG_FORM
        else:
            problem, code = _message_of(error, path), Code.OVERRIDE_FORM
        line = f"override {shown_override(override)!r}: {problem}"
        raise ConfigError(line, code=code) from error
    assert isinstance(plain, dict)
    return plain, environment_references(written)


def _hydra_compose(path: Path, overrides: Sequence[str]) -> Any:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    with initialize_config_dir(str(path.parent.resolve()), version_base="1.3"):
        return hydra_compose(NAME, list(overrides))


def _unknown_override_problem(override: str, composed_keys: Any) -> str:
    """Says what to do about an override of a key that the composed YAML does not have."""
    root, _, below = override_key(override).partition(".")
    if section_problem := unknown_section_problem(root):
        return f"{root}: {section_problem}"
    candidates = [] if below else leaves_of_that_name(AjetConfig, [root])
    if candidates and not override.startswith("~"):
        return f"{root}: no such key; did you mean {' or '.join(map(repr, candidates))}?"
    return unknown_override(override, composed_keys)


def _example(path: Path) -> str | None:
    """Returns the name of the example that a path of the documentation is in."""
    match path.parts:
        case ("tutorial", folder, _) if folder.startswith("example_"):
            return folder.removeprefix("example_")
    return None


def read_yaml(path: Path) -> dict[str, Any]:
    """Returns the YAML's own mapping. Raises ConfigError of one line when there is no such file or
    it is no mapping."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if path.is_dir():
        raise ConfigError(f"{path}: a folder; give the YAML in it", code=Code.CONFIG_NOT_FOUND)
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: a config ends in .yaml", code=Code.CONFIG_NOT_FOUND)
    if not path.is_file():
        hint = f"; copy the example: ajet examples {name}" if (name := _example(path)) else ""
        raise ConfigError(
            f"{path}: no such config file (the current folder is {Path.cwd()}){hint}",
            code=Code.CONFIG_NOT_FOUND,
        )
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        node = root_of(text)
        if node is not None:
            check_size(node, path)
        if node is not None and not isinstance(node, yaml.MappingNode):
            raise ConfigError(
                f"{path}: a config is a mapping with a section 'ajet:'", code=Code.CONFIG_FORM
            )
        yaml_content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, OSError) as error:
        problem = _placeholders(path, PLACEHOLDER.findall(text)) or _yaml_error(path, error)
        raise ConfigError(problem, code=Code.YAML_INVALID) from error
    except RecursionError as error:
        raise ConfigError(
            f"{path}: not valid YAML: an anchor (&name) refers to itself, or it nests too deeply",
            code=Code.YAML_INVALID,
        ) from error
    assert isinstance(yaml_content, dict)
    # Where the file is valid YAML, lower-case names may be those of a prompt's template.
    matches = map(PLACEHOLDER.fullmatch, texts(yaml_content))
    whole = [match[0] for match in matches if match and match[1].isupper()]
    if problem := _placeholders(path, PLACEHOLDER.findall(" ".join(whole))):
        raise ConfigError(problem, code=Code.YAML_INVALID)
    return _with_present_names({str(key): value for key, value in yaml_content.items()}, path)


def _placeholders(path: Path, names: list[str]) -> str | None:
    """Says that the YAML is a template whose placeholders have to be filled in, if it has some."""
    if not names:
        return None
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - 3} more" if len(distinct) > 3 else ""
    examples = ", ".join(f"{{{{{name}}}}}" for name in distinct[:3])
    return f"{path}: a template: fill in its placeholders, {examples}{more}"


def _with_present_names(yaml_content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Returns the mapping with AgentJet's former section `astuner:`, and the former name of its
    defaults, under their present names."""
    if FORMER_SECTION not in yaml_content:
        return yaml_content
    if "ajet" in yaml_content:
        raise ConfigError(
            f"{path}: {FORMER_SECTION}: is the former name of ajet:, which is there",
            code=Code.KEYS_CONFLICT,
        )
    present = {"ajet" if key == FORMER_SECTION else key: yaml_content[key] for key in yaml_content}
    if isinstance(listed := present.get("defaults"), list):
        former = FORMER_DEFAULTS
        present["defaults"] = ["ajet_default" if entry in former else entry for entry in listed]
    return present


def check_size(root: yaml.Node, path: Path) -> None:
    """Raises ConfigError for a YAML whose aliases (*name) multiply it beyond `MAX_VALUES`: a few
    lines can stand for billions of values."""
    sizes: dict[int, int] = {}

    def size_of(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = 1  # an anchor that refers to itself is refused elsewhere
            inner: list[Any] = node.value if isinstance(node, yaml.CollectionNode) else []
            parts = [part for each in inner for part in (each if type(each) is tuple else (each,))]
            sizes[id(node)] = 1 + sum(map(size_of, parts))
        return sizes[id(node)]

    if size_of(root) > MAX_VALUES:
        raise ConfigError(
            f"{path}: its aliases (*name) multiply it to more than {MAX_VALUES} values; write it "
            "without them",
            code=Code.CONFIG_FORM,
        )


def _hydra_notices(boilerplate: dict[str, Any]) -> list[str]:
    """Returns one line for each setting of Hydra's own but `searchpath`."""
    return [
        f"ignored: hydra.{key} (of Hydra's own settings hydra.searchpath alone is read)"
        for key in boilerplate
        if key != "searchpath"
    ]


def _defaults(listed: Any, path: Path) -> list[Any]:
    """Returns the list of defaults with `_self_` in it."""
    if listed is None:
        listed = DEFAULTS
    if not isinstance(listed, list):
        raise ConfigError(
            f"{path}: defaults: a list is expected, got {listed!r}", code=Code.CONFIG_FORM
        )
    return listed if "_self_" in listed else [*listed, "_self_"]


def _without_hydras_own(listed: list[Any]) -> list[Any]:
    """Returns the list of defaults without Hydra's own configuration, where the list does not
    choose some of it itself."""
    keys = [str(key) for each in listed if isinstance(each, dict) for key in each]
    chosen = {key.removeprefix("override ").strip(" /") for key in keys}
    left_out = [f"hydra/{group}" for group in HYDRAS_OWN if f"hydra/{group}" not in chosen]
    return [*listed, *({f"override {group}": None} for group in left_out)]


def _own_search_path(boilerplate: Any, path: Path) -> list[str]:
    """Returns the user's own `hydra.searchpath` folders that exist, as absolute ones."""
    if not isinstance(boilerplate, dict):
        raise ConfigError(
            f"{path}: hydra: a section is expected here, got {boilerplate!r}", code=Code.CONFIG_FORM
        )
    listed = boilerplate.get("searchpath") or []
    if not isinstance(listed, list):
        raise ConfigError(
            f"{path}: hydra.searchpath: a list is expected, got {listed!r}", code=Code.CONFIG_FORM
        )
    found = []
    for entry in listed:
        scheme, _, location = str(entry).partition("://")
        if scheme == "pkg":
            found.append(str(entry))
        elif scheme == "file":
            folders = (base / location for base in (Path.cwd(), path.parent))
            found += [f"file://{folder.resolve()}" for folder in folders if folder.is_dir()]
        else:
            raise ConfigError(
                f"{path}: hydra.searchpath: {entry!r}: write file://folder or pkg://module",
                code=Code.CONFIG_FORM,
            )
    return list(dict.fromkeys(found))


def _missing_config(path: Path, error: Any) -> str:
    """Describes an entry of `defaults:`, of the YAML or of one that it names, that does not
    exist."""
    missing = error.missing_cfg_file
    folders = ", ".join(str(folder) for folder in [path.parent.resolve(), PACKAGED[0]])
    return (
        f"{path}: defaults: there is no {missing}.yaml; looked in {folders} and the folders of "
        "hydra.searchpath"
    )


def _failed_override(error: Exception, overrides: Sequence[str]) -> str | None:
    """Returns the override that Hydra could not apply."""
    match = re.search(r"Could not .*?'([^']+)'|override (\S+)", str(error))
    keys = {override_key(group) for group in match.groups() if group} if match else set()
    return next((override for override in overrides if override_key(override) in keys), None)


def _hydra_problem(error: Exception, origin: Origin) -> str:
    """Returns Hydra's error in a line; for a ``${…}`` without a value with its key and what to
    do."""
    from omegaconf.errors import OmegaConfBaseException

    key = error.full_key if isinstance(error, OmegaConfBaseException) else None
    location = f"{origin.of(key)}: {key}" if key else str(origin.path)
    if variable := re.search(r"Environment variable '([^']+)' not found", str(error)):
        return (
            f"{location}: the environment variable {variable[1]} is not set; set it, or write "
            f"${{oc.env:{variable[1]},DEFAULT}}"
        )
    if name := re.search(r"Interpolation key '([^']+)' not found", str(error)):
        return f"{location}: ${{{name[1]}}} names no key; write a key of the config, or the value"
    return f"{origin.path}: {_message_of(error, origin.path)}"


def _message_of(error: Exception, path: Path) -> str:
    """Returns Hydra's message in one line; a key that Hydra names last comes first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    keys = [line.partition("full_key: ")[2] for line in lines if line.startswith("full_key: ")]
    message_lines = [line for line in lines[:3] if not line.startswith(("object_type", "full_key"))]
    return ": ".join([*keys[:1], " ".join(message_lines)]).replace(NAME, path.name)


def _yaml_error(path: Path, error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        reason = f"{error.reason} at byte {error.start}"
        return f"{path}: not a text file in UTF-8: {reason}; save it in UTF-8"
    if isinstance(error, yaml.reader.ReaderError):
        line = path.read_text(encoding="utf-8").count("\n", 0, error.position) + 1
        return (
            f"{path}:{line}: not valid YAML: the character #x{error.character:02x} is not allowed"
        )
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem is None:
        return f"{path}: not valid YAML: {_message_of(error, path)}"
    mark, problem = error.problem_mark, error.problem
    for start, (is_begin, advice) in YAML_ADVICE.items():
        if problem.startswith(start):
            # Where something is not closed the parser notices it lines later.
            mark = error.context_mark or mark if is_begin else mark
            problem = f"{problem}: {advice}"
            break
    location = f"{path}:{mark.line + 1}" if mark else f"{path}"
    return f"{location}: not valid YAML: {problem}"
