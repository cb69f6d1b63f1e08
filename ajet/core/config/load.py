"""Provides `load_config`: a YAML and overrides in, one checked tree out.

    compose (Hydra) -> renames -> unknown sections -> pydantic -> refusals, required keys, notices

Every mistake is a ConfigError that says where it was written. Whether the model, a class or the
data exists is checked by `ajet check`, and by the code that opens it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ajet.core.config.compose import Composed, compose, read_yaml, unknown_section_problem
from ajet.core.config.explain import Origin, explained, leaves_of_that_name
from ajet.core.config.kinds import forced_values
from ajet.core.config.nested import merge, with_values
from ajet.core.config.redacted import redacted_keys, redacted_value, remember_secrets_of
from ajet.core.config.renames import apply_renames
from ajet.core.config.section import leaves
from ajet.core.config.support import refusals_and_notices
from ajet.core.config.tree import AjetConfig
from ajet.core.errors import AjetError, ConfigError, KeyMissing, KeysConflict
from ajet.core.errors.codes import Code

REQUIRED = ("ajet.model.path",)


def load_config(
    path: Path | str,
    overrides: Sequence[str] = (),
    *,
    backbone: str | None = None,
    exp_dir: Path | str | None = None,
    project_dir: Path | str | None = None,
    required: Sequence[str] = REQUIRED,
) -> AjetConfig:
    """Returns the config of one run, whose folder is <exp_dir>/<name> where `exp_dir` is set."""
    origin = _origin(path, overrides, backbone)
    composed = _composed(origin, project_dir)
    return _checked(composed, origin, exp_dir, project_dir, required)


def load_stages(
    path: Path | str,
    overrides: Sequence[str] = (),
    *,
    backbone: str | None = None,
    exp_dir: Path | str | None = None,
    project_dir: Path | str | None = None,
) -> list[AjetConfig]:
    """Returns the configs of a run's stages in their order, or that of the run if it has none.
    A stage's run folder is below that of the run.

    ajet:                                        values of stage `learn`
      trainer_common: {optim: {lr: 1e-5}}          ajet.trainer_common.optim.lr: 1e-6
      stages:                                      ajet.trainer_common.total_training_steps: 60
        imitate: {kind: supervised}
        learn: {trainer_common: {optim: {lr: 1e-6}, total_training_steps: 60}}
    """
    origin = _origin(path, overrides, backbone)
    composed = _composed(origin, project_dir)
    # The run itself is checked first: a mistake above the stages is reported once, without a stage.
    whole = _checked(composed, origin, exp_dir, project_dir, REQUIRED)
    if not whole.ajet.stages:
        return [whole]
    if whole.ajet.trainer_common.resume not in ("auto", "disable"):
        raise KeysConflict(
            f"{path}: ajet.trainer_common.resume names the checkpoint of one run, and this one has "
            "stages, each of which resumes separately: give auto or disable"
        )
    stages: list[AjetConfig] = []
    for name in whole.ajet.stages:
        in_stage = Origin(origin.path, origin.overrides, name)
        with errors_of_stage(name):
            stages.append(_checked(composed, in_stage, exp_dir, project_dir, REQUIRED))
    return stages


def _origin(path: Path | str, overrides: Sequence[str], backbone: str | None) -> Origin:
    return Origin(Path(path), [*overrides, *([f"ajet.backbone={backbone}"] if backbone else [])])


def _composed(origin: Origin, project_dir: Path | str | None) -> Composed:
    if project_dir is not None and not Path(project_dir).is_dir():
        raise ConfigError(
            f"--project-dir {project_dir}: no such folder", code=Code.PROJECT_DIR_MISSING
        )
    return compose(origin.path, origin.overrides)


def _checked(
    composed: Composed,
    origin: Origin,
    exp_dir: Path | str | None,
    project_dir: Path | str | None,
    required: Sequence[str],
) -> AjetConfig:
    """Returns the config of the origin's stage, or of the run where it has none."""
    path, stage = origin.path, origin.stage
    values, renaming_notices = apply_renames(composed.values, AjetConfig().to_dict())
    if stage is not None:
        # The stage's values are laid over the run's: mappings are merged key by key, anything else
        # is replaced.
        ajet = {key: value for key, value in values["ajet"].items() if key != "stages"}
        overrides = values["ajet"]["stages"][stage] or {}
        renamed, stage_notices = apply_renames({"ajet": overrides}, AjetConfig().to_dict())
        values = merge({**values, "ajet": ajet}, renamed)
        renaming_notices += stage_notices
    for name in values:
        if problem := unknown_section_problem(name):
            where = f"{origin.of(name)}: {name}"
            raise ConfigError(f"{where}: {problem}", code=Code.UNKNOWN_KEY, where=where)
    # A typed section that is there and empty (`trinity:`) is None in YAML: it has its defaults.
    filled = {
        key: {} if key in AjetConfig.model_fields and inner is None else inner
        for key, inner in values.items()
    }
    try:
        config = AjetConfig.model_validate(filled)
    except ValidationError as error:
        raise explained(error, AjetConfig, origin) from error
    config = _with_exp_dir(config, path, exp_dir, origin)
    if stage is not None:
        config._yaml_path = path.resolve()  # the run's folder is named after it
        changed = {
            "ajet.experiment_dir": str(config.run_folder / stage),
            "ajet.experiment_name": f"{config.experiment_name}-{stage}",
        }
        config = with_values(config, changed)
    config, forced = _with_forced_values(config)
    # Validation and model_copy make new objects, so private attributes are set once, at the end.
    config._yaml_path = path.resolve()
    config._project_dir = Path(project_dir).resolve() if project_dir else None
    config._references = composed.references
    config._stage = stage
    config._overrides = tuple(origin.overrides)
    _refuse_redacted(config, origin)
    remember_secrets_of(config)
    _require(config, required, path)
    refused, unused = refusals_and_notices(config)
    misplaced = _misplaced_keys(values, origin)
    config._notices = [*composed.notices, *misplaced, *renaming_notices, *forced, *unused]
    if refused:
        lines = [f"{origin.of(key)}: {key} is refused: {reason}" for key, reason in refused]
        raise ConfigError("; ".join(lines), code=Code.KEY_REFUSED)
    return config


@contextmanager
def errors_of_stage(name: str | None) -> Iterator[None]:
    """Puts the stage's name before the message of an error, keeping its class and code; None leaves
    errors unchanged."""
    try:
        yield
    except AjetError as error:
        if name is None:
            raise
        message, code, where = f"stage {name}: {error}", error.code, error.where
        raise type(error)(message, code=code, where=where, parts=error.parts) from error


def _with_forced_values(config: AjetConfig) -> tuple[AjetConfig, list[str]]:
    """Returns the config with the values that follow from its kind, and a notice for each key that
    was set to another value."""
    kind = config.ajet.kind
    values = forced_values(kind, config.ajet.preference.loss)
    if not values:
        return config, []
    notices = [
        f"ignored: {leaf.path}={redacted_value(leaf.path, leaf.value)} (ajet.kind is {kind})"
        for leaf in leaves(config.ajet, "ajet")
        if leaf.path in values and not leaf.is_default and leaf.value != values[leaf.path]
    ]
    return AjetConfig.model_validate(with_values(config.model_dump(), values)), notices


def _misplaced_keys(values: Mapping[str, Any], origin: Origin) -> list[str]:
    """Returns a notice for each top-level value with the name of a key of ours: a likely mistake,
    but the user's code may read it."""
    notices = []
    for name, value in values.items():
        keys = [] if isinstance(value, Mapping) else leaves_of_that_name(AjetConfig, [name])
        if keys:
            notices.append(
                f"{origin.of(name)}: {name}: only your own code reads it at the top level; did you "
                f"mean {' or '.join(map(repr, keys))}?"
            )
    return notices


def _refuse_redacted(config: AjetConfig, origin: Origin) -> None:
    """Raises ConfigError for a ``***``, which stands for a secret in the YAML of a run folder and
    in commands that ajet prints."""
    for key in redacted_keys(config.to_dict(), except_for=config.ajet.not_secret):
        raise ConfigError(
            f"{origin.of(key)}: {key}: *** stands for a value that ajet does not store: write the "
            f"value itself, as {key}=…; to mean three stars, name {key} in ajet.not_secret",
            code=Code.REDACTED_VALUE,
        )


def _with_exp_dir(
    config: AjetConfig, path: Path, exp_dir: Path | str | None, origin: Origin
) -> AjetConfig:
    if exp_dir is None:
        return config
    if config.ajet.experiment_dir != "auto":
        key = "ajet.experiment_dir"
        raise KeysConflict(
            f"{origin.of(key)}: {key} names the run folder, and --exp-dir {exp_dir} gives another: "
            "leave one of them out"
        )
    name = config.ajet.experiment_name
    folder = Path(exp_dir) / (path.stem if name == "read_yaml_name" else name)
    return with_values(config, {"ajet.experiment_dir": str(folder)})


def _require(config: AjetConfig, required: Sequence[str], path: Path) -> None:
    for key in required:
        value: Any = config
        for name in key.split("."):
            value = getattr(value, name)
        if value is None:
            sections = list(read_yaml(path))
            if "ajet" not in sections and "defaults" not in sections:
                content = f"it has {', '.join(sections)}" if sections else "it is empty"
                raise ConfigError(
                    f"{path}: the file has no section 'ajet:', {content}; write ajet: and below "
                    "it, indented, model, rollout and the other sections",
                    code=Code.CONFIG_FORM,
                )
            *sections, name = key.split(".")
            model: Any = AjetConfig
            for section in sections:
                model = model.model_fields[section].annotation
            sentence = model.model_fields[name].description or ""
            where = f"{path}: {key}"
            raise KeyMissing(f"{where} is missing. {sentence}", where=where)
