"""The model card of an exported model, the README.md of its folder in the form that the Hugging
Face Hub reads. It is for others to read: secrets are replaced as in a run folder's config, and a
path on this machine keeps only its last name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ajet.core.checkpoint.manifest import step_of
from ajet.core.config import AjetConfig
from ajet.core.config.nested import flatten, set_key
from ajet.core.config.redacted import redacted_config
from ajet.core.config.yaml_codec import to_yaml
from ajet.core.judge import judge_spec
from ajet.core.record.evaluation import wilson
from ajet.core.record.run_folder import RunFolder, RunOrigin
from ajet.core.record.summary import RunSummary
from ajet.core.run.attempt_record import read_attempts
from ajet.core.text.redaction import redact
from ajet.core.workflow.registry import DEFAULT_AGENT
from ajet.read.folders import without_folders

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
UNSHOWN = ("ajet.experiment_name", "ajet.experiment_dir", "ajet.project_name")
NOT_CLAIMED = """## What is not claimed

- The figures are about the held-out tasks above, as this judge sees them. They say nothing about
  other tasks, public benchmarks, or answers that a person would prefer.
- A judge can be satisfied without the task being solved. Nobody read episodes for this card.
- What the model has unlearnt (other languages, other tasks, refusals) was not measured, nor was
  its safety.
- One run with one seed: another seed gives other figures.
- The license of the base model applies to this one. It was not checked for this card.
"""


def model_card(
    config: AjetConfig, checkpoint: Path, folder: RunFolder | None = None, *, adapter: bool = False
) -> str:
    """Returns the card of a checkpoint. Without a run's `folder` (a checkpoint of Tinker's API) it
    has neither figures nor a command."""
    parts = [
        _front_matter(config, adapter),
        _title(config, checkpoint, folder, adapter),
        _training(config, folder, step_of(checkpoint)),
    ]
    if folder is not None:
        parts += [_figures(folder, step_of(checkpoint)), _command(config)]
    return redact("\n".join([*parts, NOT_CLAIMED]))


def _front_matter(config: AjetConfig, adapter: bool) -> str:
    base = config.ajet.model.path or ""
    data = config.ajet.task_reader.huggingface_dat_repo.dataset_path or ""
    is_from_hub = config.ajet.task_reader.type == "huggingface_dat_repo"
    values: dict[str, Any] = {
        "base_model": base if _is_on_the_hub(base) else None,
        "datasets": [data] if is_from_hub and _is_on_the_hub(data) else None,
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["ajet", "reinforcement-learning"],
    }
    given = {key: value for key, value in values.items() if value is not None}
    return f"---\n{to_yaml(given)}---\n"


def _title(config: AjetConfig, checkpoint: Path, folder: RunFolder | None, adapter: bool) -> str:
    what = "The LoRA adapters of" if adapter else "The weights after"
    base = without_folders(config.ajet.model.path or "")
    name = config.experiment_name if folder is not None else base
    lines = [f"# {name}\n", f"{what} step {step_of(checkpoint)} of a run of ajet over `{base}`."]
    if folder is not None:
        begun = RunOrigin.read(folder.origin_json).begun[:10]
        ended = [attempt.ended[:10] for attempt in read_attempts(folder) if attempt.ended]
        lines.append(f"The run began on {begun}{f' and ended on {ended[-1]}' if ended else ''}.")
    return "\n".join([*lines, f"This card was written by ajet {version('ajet')}.\n"])


def _training(config: AjetConfig, folder: RunFolder | None, step: int) -> str:
    ajet, trainer = config.ajet, config.ajet.trainer_common
    rows = {
        "base model": f"`{without_folders(ajet.model.path or '')}`",
        "steps": str(step),
    }
    if folder is not None:
        algorithm = trainer.algorithm
        estimator = f"`{algorithm.adv_estimator}`, loss `{algorithm.policy_loss}`"
        rows |= {
            "kind of run": f"`{ajet.kind}`, backbone `{ajet.backbone}`, seed {ajet.seed}",
            "data": _data(config, folder),
            "agent": f"`{ajet.rollout.user_workflow or DEFAULT_AGENT}`",
            "judge": f"`{spec}`" if (spec := judge_spec(ajet.task_judge)) else "the agent itself",
            "estimator": f"{estimator}, groups of {ajet.rollout.num_repeat}",
            "optimizer": f"learning rate {trainer.optim.lr:g}",
        }
    if trainer.lora.rank:
        rows["adapters"] = f"LoRA of rank {trainer.lora.rank}"
    return "\n".join(["## Training\n", "| | |", "|---|---|", *_lines(rows), ""])


def _data(config: AjetConfig, folder: RunFolder) -> str:
    reader = config.ajet.task_reader
    names = flatten(reader.model_dump(exclude_defaults=True).get(reader.type, {}))
    texts = [without_folders(str(value)) for key, value in sorted(names.items())]
    named = ", ".join(f"`{text}`" for text in dict.fromkeys(texts))
    attempts = read_attempts(folder)
    rows = (attempts[-1].identity.rows if attempts else None) or {}
    counted = [f"{found['number']:,} {what}" for what, found in rows.items()]
    return "; ".join(filter(None, [f"reader `{reader.type}`", named, ", ".join(counted)]))


def _figures(folder: RunFolder, step: int) -> str:
    title = "## Held-out success\n"
    if not folder.summary_json.exists():
        return f"{title}\nNot measured: the run was not complete when this card was written.\n"
    summary = RunSummary.read(folder.summary_json)
    measured = {name: ends for name, ends in summary.rates.items() if ends != (None, None)}
    if not measured or not summary.num_held_out:
        return f"{title}\nNot measured: the run had no held-out tasks.\n"
    lines = ["| decoding | before | after |", "|---|---|---|"]
    for name, ends in measured.items():
        before, after = (_rate(rate, summary.num_held_out) for rate in ends)
        lines.append(f"| {name or 'as configured'} | {before} | {after} |")
    number, available = summary.num_held_out, summary.num_held_out_available
    of = f" of {available:,}" if available > number else ""
    about = f"On {number:,}{of} held-out tasks, with 95 % intervals; after step {summary.steps}."
    if step != summary.steps:
        about += f" **These weights are those of step {step}, which were not measured.**"
    return "\n".join([title, *lines, "", about, ""])


def _rate(rate: float | None, number: int) -> str:
    if rate is None:
        return "not measured"
    estimate = wilson(round(rate * number), number)
    return f"{rate:.1%} ({estimate.low:.1%} to {estimate.high:.1%})"


def _command(config: AjetConfig) -> str:
    name, defaults = config.experiment_name, flatten(AjetConfig().to_dict())
    changed: dict[str, Any] = {}  # the values that are not the defaults, nested
    for key, value in flatten(redacted_config(config)).items():
        if key not in UNSHOWN and (key not in defaults or defaults[key] != value):
            set_key(changed, key, without_folders(value))
    block = f"```bash\najet --conf {name}.yaml --backbone {config.ajet.backbone}\n```\n"
    return (
        "## To train it again\n\nWith the agent, the judge and the data above next to this config, "
        f"as `{name}.yaml` (`***` stands for a text that a card does not show):\n\n"
        f"```yaml\n{to_yaml(changed)}```\n\n{block}"
    )


def _is_on_the_hub(name: str) -> bool:
    return HUB_NAME.fullmatch(name) is not None and not Path(name).exists()


def _lines(rows: Mapping[str, str]) -> list[str]:
    return [f"| {title} | {text.replace('|', chr(92) + '|')} |" for title, text in rows.items()]
