"""Composes a YAML and command-line overrides to plain data, from any folder.

    math_agent.yaml ──┐
    its `defaults:`  ─┼─ Hydra, or overlay.py where the defaults are the project's ── plain dict
    key=value …      ─┘

The project's defaults always come from the package, so `hydra:` and `defaults:` may be left out. A
YAML whose `defaults:` lack `_self_` is laid over them. `astuner:` is read as `ajet:`.
"""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ajet.core.config.agentjet_keys import FORMER_DEFAULTS, FORMER_SECTION
from ajet.core.config.explain import Origin, leaves_of_that_name, mapping_and_list_problem
from ajet.core.config.nested import flatten, texts
from ajet.core.config.other_systems import recognise
from ajet.core.config.overlay import PACKAGED, overlaid
from ajet.core.config.overrides import hydra_override, override_key, unknown_override
from ajet.core.config.redacted import environment_references, shown_override
from ajet.core.config.tree import AjetConfig, AjetSection
from ajet.core.config.yaml_codec import root_of
from ajet.core.errors import ConfigError, KeyMissing, KeysConflict
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import windows_advice

DEFAULTS = ["verl_default", "trinity_default", "ajet_default", "_self_"]
MAX_VALUES = 100_000
BLANK = "???"
"""A value that is left for the user to write; OmegaConf would replace it by the default."""
HYDRA_GROUPS = (
    *("output", "launcher", "sweeper", "help", "hydra_help"),
    *("hydra_logging", "job_logging", "env"),
)
"""The groups of Hydra's configuration of itself. Nothing here reads them, and loading them takes a
quarter of the time of a composition."""
NAME = "__ajet_run__"
RESERVED = {name for name in dir(AjetConfig) if not name.startswith("__")} - {
    *AjetConfig.model_fields
}
"""Attributes of `AjetConfig`, which a section of the user's would hide."""
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
"""Maps the beginning of the parser's message to (whether the mistake is where the construct began,
not where the parser noticed it; the advice)."""


class Composed(NamedTuple):
    """Holds a composed YAML. `references` maps the path of a value that comes from the environment
    to ``${oc.env:NAME}``; `notices` has a line for each setting of Hydra that is ignored."""

    values: dict[str, Any]
    references: dict[str, str]
    notices: list[str]


def compose(path: Path, overrides: Sequence[str]) -> Composed:
    """Returns the composed YAML with its interpolations resolved."""
    yaml_content = read_yaml(path)
    _refuse_other_systems(yaml_content, path)
    boilerplate = yaml_content.pop("hydra", None) or {}
    search_path = _search_path(boilerplate, path)
    defaults = _defaults(yaml_content.pop("defaults", None), path)
    parsed = [hydra_override(override) for override in overrides]
    refuse_blanks(yaml_content, overrides, path)
    origin = Origin(path, overrides)
    values, references = None, dict[str, str]()
    # Hydra takes most of a second to import and compose. The overlay gives the same result for the
    # common case, and None for everything that it leaves to Hydra, mistakes included.
    if not search_path:
        values = overlaid(yaml_content, defaults, parsed, origin)
    if values is None:
        # Hydra's own groups are switched off, but for those that the list itself chooses.
        keys = [str(key) for entry in defaults if isinstance(entry, dict) for key in entry]
        chosen = {key.removeprefix("override ").strip(" /") for key in keys}
        unused = [f"hydra/{group}" for group in HYDRA_GROUPS if f"hydra/{group}" not in chosen]
        yaml_content["defaults"] = [*defaults, *({f"override {group}": None} for group in unused)]
        values, references = _composed_by_hydra(yaml_content, search_path, parsed, origin)
    values = {str(key): value for key, value in values.items()}
    notices = [
        f"ignored: hydra.{key} (the only setting of Hydra that is read is hydra.searchpath)"
        for key in boilerplate
        if key != "searchpath"
    ]
    return Composed(values, references, notices)


def refuse_blanks(values: Mapping[str, Any], overrides: Sequence[str], path: Path) -> None:
    """Raises ConfigError for the first blank value of a YAML that no override sets."""
    set_keys = {override_key(override) for override in overrides}
    blanks = [
        key for key, value in flatten(values).items() if value == BLANK and key not in set_keys
    ]
    if not blanks:
        return
    more = f" (and {len(blanks) - 1} more)" if len(blanks) > 1 else ""
    where = f"{path}: {blanks[0]}"
    raise KeyMissing(f"{where} is left blank (???){more}: write its value", where=where)


def _refuse_other_systems(yaml_content: dict[str, Any], path: Path) -> None:
    """Raises ConfigError for a config of another system."""
    # A config of ours may have verl's sections too, and may get `ajet:` from its `defaults:`.
    if "ajet" in yaml_content or "ajet" in str(yaml_content.get("defaults")):
        return
    for name, title, key in recognise(yaml_content):
        raise ConfigError(
            f"{path}: looks like a config of {title} (it has {key}); convert it: "
            f"ajet convert --from {name} {path} --out mine.yaml",
            code=Code.CONFIG_FORM,
        )


def _composed_by_hydra(
    yaml_content: dict[str, Any], search_path: list[str], parsed: list[str], origin: Origin
) -> tuple[dict[Any, Any], dict[str, str]]:
    """Returns the composed values, and the references of `Composed`."""
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException, MissingConfigException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from ajet.core.config.packaged_defaults import PackagedDefaults

    path, overrides = origin.path, origin.overrides
    packaged = [f"{PackagedDefaults.scheme()}://{folder.resolve()}" for folder in PACKAGED]
    search = {"searchpath": [*packaged, *search_path]}
    try:
        # Hydra composes files by name. The YAML has been read already (and may lack the
        # boilerplate that Hydra needs), so it is stored under a name that no file can have.
        node = OmegaConf.create(yaml_content | {"hydra": search})
        ConfigStore.instance().store(name=NAME, node=node)
        composed = _hydra_compose(path, parsed)
        plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
        unresolved = OmegaConf.to_container(composed, resolve=False)
    except MissingConfigException as error:
        raise ConfigError(_missing_config(path, error), code=Code.DEFAULTS_NOT_FOUND) from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        override = _failed_override(error, overrides)
        if override is None:
            # Hydra's message for a list in place of a section names neither key nor line.
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
    return plain, environment_references(unresolved)


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


def unknown_section_problem(name: str) -> str | None:
    """Says what is wrong with a top-level key that cannot be a section of the user's; None where
    nothing is.

    ajt.seed=1 -> did you mean 'ajet'?        seed: 1 -> write it under 'ajet:' as ajet.seed
    """
    typed = list(AjetConfig.model_fields)
    if name in typed:
        return None
    if close := get_close_matches(name, typed, 1, cutoff=0.8):
        return f"no such section; did you mean {close[0]!r}?"
    if name in AjetSection.model_fields:
        return f"stands at the top level; write it under 'ajet:' as ajet.{name}"
    if name == "actor_rollout_ref":
        return "is verl's own key; set ajet.rollout, ajet.trainer_common or verl instead"
    return "is a reserved name; rename this section of yours" if name in RESERVED else None


def _example(path: Path) -> str | None:
    """Returns the name of the example for a path as the documentation writes it."""
    match path.parts:
        case ("tutorial", folder, _) if folder.startswith("example_"):
            return folder.removeprefix("example_")
    return None


def read_yaml(path: Path) -> dict[str, Any]:
    """Returns the file's content, before it is composed with anything. Raises a one-line
    ConfigError where the file is missing, not YAML, or not a mapping."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if path.is_dir():
        raise ConfigError(f"{path}: a folder; give the YAML in it", code=Code.CONFIG_NOT_FOUND)
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: a config ends in .yaml", code=Code.CONFIG_NOT_FOUND)
    if not path.is_file():
        hint = f"; copy the example: ajet examples {name}" if (name := _example(path)) else ""
        raise ConfigError(
            f"{path}: no such config file (the current folder is {Path.cwd()}){hint}"
            f"{windows_advice(str(path))}",
            code=Code.CONFIG_NOT_FOUND,
        )
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        node = root_of(text)
        if node is not None:
            check_size(node, path)  # before OmegaConf copies what each alias refers to
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
    # In a file that is valid YAML, lower-case names may be those of a prompt's template.
    matches = map(PLACEHOLDER.fullmatch, texts(yaml_content))
    if problem := _placeholders(path, [m[1] for m in matches if m and m[1].isupper()]):
        raise ConfigError(problem, code=Code.YAML_INVALID)
    return _with_current_names({str(key): value for key, value in yaml_content.items()}, path)


def _placeholders(path: Path, names: list[str]) -> str | None:
    """Says that the YAML is a template with these placeholders to fill in, if there are any."""
    if not names:
        return None
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - 3} more" if len(distinct) > 3 else ""
    examples = ", ".join(f"{{{{{name}}}}}" for name in distinct[:3])
    return f"{path}: a template: fill in its placeholders, {examples}{more}"


def _with_current_names(yaml_content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Returns the mapping with AgentJet's former section `astuner:`, and the former names of its
    defaults, renamed."""
    if FORMER_SECTION not in yaml_content:
        return yaml_content
    if "ajet" in yaml_content:
        raise KeysConflict(f"{path}: {FORMER_SECTION}: is the former name of ajet:, which is there")
    renamed = {"ajet" if key == FORMER_SECTION else key: yaml_content[key] for key in yaml_content}
    if isinstance(listed := renamed.get("defaults"), list):
        renamed["defaults"] = [
            "ajet_default" if entry in FORMER_DEFAULTS else entry for entry in listed
        ]
    return renamed


def check_size(root: yaml.Node, path: Path) -> None:
    """Raises ConfigError for a YAML whose aliases (*name) multiply it beyond `MAX_VALUES`: a few
    lines can stand for billions of values."""
    # An aliased node is one object in several places. With the sizes by id each is visited once,
    # and still counted wherever it stands.
    sizes: dict[int, int] = {}

    def size_of(node: yaml.Node) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = 1  # an anchor that refers to itself is refused elsewhere
            children: list[yaml.Node] = []
            if isinstance(node, yaml.MappingNode):
                children = [child for pair in node.value for child in pair]
            elif isinstance(node, yaml.SequenceNode):
                children = node.value
            sizes[id(node)] = 1 + sum(map(size_of, children))
        return sizes[id(node)]

    if size_of(root) > MAX_VALUES:
        raise ConfigError(
            f"{path}: its aliases (*name) multiply it to more than {MAX_VALUES} values; write it "
            "without them",
            code=Code.CONFIG_FORM,
        )


def _defaults(listed: Any, path: Path) -> list[Any]:
    """Returns the list of defaults with `_self_` in it."""
    if listed is None:
        listed = DEFAULTS
    if not isinstance(listed, list):
        raise ConfigError(
            f"{path}: defaults: a list is expected, got {listed!r}", code=Code.CONFIG_FORM
        )
    return listed if "_self_" in listed else [*listed, "_self_"]


def _search_path(boilerplate: Any, path: Path) -> list[str]:
    """Returns the entries of `hydra.searchpath`, of folders those that exist, as absolute ones."""
    if not isinstance(boilerplate, dict):
        raise ConfigError(
            f"{path}: hydra: a section is expected here, got {boilerplate!r}", code=Code.CONFIG_FORM
        )
    listed = boilerplate.get("searchpath") or []
    if not isinstance(listed, list):
        raise ConfigError(
            f"{path}: hydra.searchpath: a list is expected, got {listed!r}", code=Code.CONFIG_FORM
        )
    addresses = []
    for entry in listed:
        scheme, _, location = str(entry).partition("://")
        if scheme == "pkg":
            addresses.append(str(entry))
        elif scheme == "file":
            # AgentJet's YAMLs name folders of its repository, which other projects do not have.
            folders = (base / location for base in (Path.cwd(), path.parent))
            addresses += [f"file://{folder.resolve()}" for folder in folders if folder.is_dir()]
        else:
            raise ConfigError(
                f"{path}: hydra.searchpath: {entry!r}: write file://folder or pkg://module",
                code=Code.CONFIG_FORM,
            )
    return list(dict.fromkeys(addresses))


def _missing_config(path: Path, error: Any) -> str:
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
    """Returns Hydra's error as one line, with the key and the advice for a ``${…}`` that has no
    value."""
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
    """Returns Hydra's message as one line that begins with the key, which Hydra names last."""
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
