"""Provides AgentJet's `ajet.copilot.job`: a run that a script configures and starts. `SwarmClient`
sends a job to a server of episodes instead.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import yaml

from ajet.core.config import AjetConfig
from ajet.core.config.agentjet_keys import MERGED, NO_SWARM, SHOWN
from ajet.core.config.compose import compose, read_yaml
from ajet.core.config.renames import apply_renames
from ajet.core.errors import ConfigError, RunFailed
from ajet.core.errors.codes import Code
from ajet.core.process.process_guard import guarded
from ajet.core.text.error_text import did_you_mean
from ajet.core.user_code.importing import ARROW

__all__ = ["AgentJetJob"]

TRAINER = "ajet.trainer_common"
ARGUMENTS = {
    "project_name": "ajet.project_name",
    "experiment_name": "ajet.experiment_name",
    "experiment_dir": "ajet.experiment_dir",
    "backbone": "ajet.backbone",
    "model": "ajet.model.path",
    "algorithm": f"{TRAINER}.algorithm.adv_estimator",
    "logging": f"{TRAINER}.logger",
    "n_gpu": f"{TRAINER}.n_gpus_per_node",
    "nnodes": f"{TRAINER}.nnodes",
    "n_gpu_for_infer": "ajet.rollout.n_vllm_engine",
    "num_repeat": "ajet.rollout.num_repeat",
    "grpo_n": "ajet.rollout.num_repeat",
    "batch_size": "ajet.data.train_batch_size",
    "max_env_worker": "ajet.rollout.max_env_worker",
    "max_prompt_length": "ajet.data.max_prompt_length",
    "max_response_length": "ajet.data.max_response_length",
    "max_response_length_in_one_turn": "ajet.rollout.max_response_length_in_one_turn",
    "max_model_len": "ajet.rollout.max_model_len",
    "tensor_model_parallel_size": "ajet.rollout.tensor_model_parallel_size",
    "max_num_seqs": "ajet.rollout.max_num_seqs",
    "gpu_memory_utilization": "verl.rollout.gpu_memory_utilization",
    "compute_madness_checklist": "ajet.rollout.compute_madness_checklist",
    "mini_batch_num": f"{TRAINER}.mini_batch_num",
    "ppo_epochs": f"{TRAINER}.ppo_epochs",
    "ulysses_sequence_parallel_size": f"{TRAINER}.ulysses_sequence_parallel_size",
    "lr": f"{TRAINER}.optim.lr",
    "lora_rank": f"{TRAINER}.lora.rank",
    "lora_alpha": f"{TRAINER}.lora.alpha",
    "lora_target_modules": f"{TRAINER}.lora.target_modules",
    "use_kl_loss": f"{TRAINER}.use_kl_loss",
    "use_kl_in_reward": f"{TRAINER}.algorithm.use_kl_in_reward",
    "total_training_steps": f"{TRAINER}.total_training_steps",
    "timeline_compare_level": (
        "ajet.context_tracker.timeline_merging_policy.timeline_compare_level"
    ),
}
REFUSED = {
    "tinkerscript_mode": NO_SWARM,
    "val_print_to_markdown_file_path": SHOWN,
    "train_print_to_markdown_file_path": SHOWN,
    "ppo_max_token_len_per_gpu": f"set {TRAINER}.max_tokens_per_micro_batch in job.config",
    "ensure_new_experiment": "give another experiment_name",
}
WITHOUT_EFFECT = {
    "swarm_mode": "SwarmClient sends the job to a server of episodes",
    "lora_load_format": MERGED,
    "layered_summon": MERGED,
}
"""Arguments that change nothing about the experiment."""
ACCEPTED = {
    "kl_penalty_type": (("kl",), "the KL in the reward is log p - log q"),
    "swarm_mode_sample_collection_method": (
        (
            "rollout_until_finish_enough_tasks",
            "rollout_until_all_clients_agree_sync_weight",
        ),
        "a batch is full when its groups are: batch_size tasks with num_repeat episodes each",
    ),
}
"""Arguments with one meaning here, and AgentJet's names for it."""
HUGGING_FACE = ("hf", "huggingface", "huggingface_dat_repo")
STOP_GRACE_S = 3600.0
"""How long a run may take to finish its step after it is asked to stop, in seconds."""


class AgentJetJob:
    """Configures one run, on top of the YAML `base_yaml_config` if one is given. `job.config`
    holds every setting, to read and to change.

    As in AgentJet, the backbone is verl unless an argument or the YAML names another one, and the
    default name is the current time.
    """

    def __init__(self, base_yaml_config: str | Path | None = None, **arguments: Any) -> None:
        for name, value in arguments.items():
            if name in REFUSED and value:
                reason = f"AgentJetJob: {name} is refused: {REFUSED[name]}"
                raise ConfigError(reason, code=Code.JOB_SETTING)
            if name in ACCEPTED and value not in (None, *ACCEPTED[name][0]):
                raise ConfigError(
                    f"AgentJetJob: {name}={value!r} is refused: {ACCEPTED[name][1]}",
                    code=Code.JOB_SETTING,
                )
            if name not in (*ARGUMENTS, *REFUSED, *WITHOUT_EFFECT, *ACCEPTED):
                hint = did_you_mean(name, ARGUMENTS)
                raise TypeError(f"AgentJetJob takes no argument {name!r}; {hint}")
        self._project_dir: Path | None = None
        self.config: Any = _as_tree({})
        if base_yaml_config is not None:
            self.load_job_from_yaml(base_yaml_config)
        else:
            self._set("ajet.backbone", "verl")
            self._set("ajet.experiment_name", datetime.now().strftime("ajet_job_%Y%m%d_%H%M%S"))
        for name, value in arguments.items():
            if name in ARGUMENTS and value is not None:
                self._set(ARGUMENTS[name], value)

    def set_workflow(self, workflow: str | type, ensure_reward_in_workflow: bool = False) -> Self:
        """Sets the agent: a class, or its name as in a YAML. `ensure_reward_in_workflow` has no
        effect: without a reward and a judge, an episode fails with an error that says so."""
        spec = workflow if isinstance(workflow, str) else _spec_of(workflow)
        self._set("ajet.rollout.user_workflow", spec)
        return self

    def set_data(
        self,
        type: str,
        dataset_path: str | None = None,
        training_split: str = "train",
        validation_split: str | None = "test",
    ) -> Self:
        """Sets the tasks: `hf` with a Hub repository, a folder or a file, or `random_dummy`."""
        if type in HUGGING_FACE:
            self._set("ajet.task_reader.type", "huggingface_dat_repo")
            section = "ajet.task_reader.huggingface_dat_repo"
            self._set(f"{section}.dataset_path", dataset_path)
            self._set(f"{section}.training_split", training_split)
            self._set(f"{section}.validation_split", validation_split)
        elif type in ("dummy", "random_dummy"):
            self._set("ajet.task_reader.type", "random_dummy")
        else:
            raise ConfigError(
                f"set_data: type {type!r} is none of hf and random_dummy: set "
                "job.config.ajet.task_reader, or give a base_yaml_config",
                code=Code.JOB_SETTING,
            )
        return self

    def load_job_from_yaml(self, yaml_path: str | Path) -> Self:
        """Replaces all settings by those of this YAML and ajet's defaults."""
        path = Path(yaml_path)
        defaults = AjetConfig().to_dict()
        composed = compose(path, []).values
        # What becomes of a job is decided by `tune` or `SwarmClient`, not by its YAML.
        composed.get("ajet", {}).pop("enable_swarm_mode", None)
        values, _ = apply_renames(composed, defaults)
        self._project_dir = path.parent.resolve()
        self.config = _as_tree(values)
        if self.config.ajet.experiment_name == "read_yaml_name":
            self._set("ajet.experiment_name", path.stem)
        if "backbone" not in (read_yaml(path).get("ajet") or {}):
            self._set("ajet.backbone", "verl")
        return self

    def dump_job_as_yaml(self, yaml_path: str | Path) -> str:
        """Writes the settings that differ from ajet's defaults, and returns the path."""
        path = Path(yaml_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        changed = self.changed_settings()
        path.write_text(yaml.safe_dump(changed, sort_keys=False, allow_unicode=True), "utf-8")
        return str(path)

    def changed_settings(self) -> dict[str, Any]:
        """Returns the settings that differ from ajet's defaults."""
        from omegaconf import OmegaConf

        values: Any = OmegaConf.to_container(self.config)
        return _changed(values, AjetConfig().to_dict())

    def tune(self) -> Self:
        """Trains in a separate process, and returns when the run is over. Ctrl-C stops it after its
        step. The YAML of the run stays as `launcher_record/<experiment_name>.yaml`."""
        # A run that imports this script would start the next run.
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        if spec is not None and spec.name == "ajet.cli.launcher":
            raise ConfigError(
                "job.tune() is called while a run loads this file: "
                'put it under if __name__ == "__main__"',
                code=Code.JOB_SETTING,
            )
        name, backbone = self.config.ajet.experiment_name, self.config.ajet.backbone
        conf = self.dump_job_as_yaml(Path("launcher_record") / f"{name}.yaml")
        command = [sys.executable, "-m", "ajet.cli.launcher", "train", "--conf", conf]
        # A script's run may start its own Ray, since nobody started one for it.
        command += ["--with-ray"] if backbone != "debug" else []
        command += ["--project-dir", str(self._project_dir)] if self._project_dir else []
        process = subprocess.Popen(guarded(command, grace_s=STOP_GRACE_S))
        try:
            exit_code = process.wait()
        except KeyboardInterrupt:
            process.terminate()
            exit_code = process.wait()
        if exit_code:
            raise RunFailed(
                f"the run {name} ended with exit code {exit_code}; it says why above",
                code=Code.PROCESS_LOST,
            )
        return self

    def _set(self, key: str, value: Any) -> None:
        from omegaconf import OmegaConf

        OmegaConf.update(self.config, key, value, force_add=True)


def _as_tree(values: Mapping[str, Any]) -> Any:
    """Returns every setting, with ajet's defaults, as a tree whose keys are attributes."""
    from omegaconf import OmegaConf

    return OmegaConf.merge(AjetConfig().to_dict(), values)


def _changed(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for key, value in values.items():
        default = defaults.get(key)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            value, default = _changed(value, default), {}
        if key not in defaults or value != default:
            changed[key] = value
    return changed


def _spec_of(workflow: type) -> str:
    """Returns the name of a class in a YAML: by its module in a package, else by its file."""
    if not inspect.isclass(workflow) or "<locals>" in workflow.__qualname__:
        raise ConfigError(
            f"set_workflow: {workflow!r} is not a class of a module: give one that a file defines, "
            "or its name as file.py->Class",
            code=Code.JOB_SETTING,
        )
    module = workflow.__module__
    source = module if "." in module else str(Path(inspect.getfile(workflow)).resolve())
    return f"{source}{ARROW}{workflow.__name__}"
