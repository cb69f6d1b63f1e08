"""Finds settings of environments that another one leaves without effect.

    custom_envs: {…}, type: jsonl_dataset_file      ignored: task_reader.type is jsonl_dataset_file
    user_workflow, type: environment                ignored: the environments name who plays

Not covered: what an environment takes (agents/environment_settings.py makes each once to find out).
"""

from ajet.core.config.environment import CustomEnv
from ajet.core.config.tree import AjetSection

ENVIRONMENT = "ajet.environment"
MANAGERS = ("train_env_manager", "val_env_manager")
TRAJ_AGENT = "traj_env_agent"


def unread_environment_keys(ajet: AjetSection) -> dict[str, str]:
    """Returns keys and sections that nothing reads, each with the setting that is the reason."""
    reader, section = ajet.task_reader.type, ajet.environment
    if "->" in reader:  # the user's own reader may read any section
        return {}
    if reader != "environment":
        return {ENVIRONMENT: f"ajet.task_reader.type is {reader}"}
    unread = {"ajet.rollout.user_workflow": "each environment's env_manager_cls says who plays"}
    if section.render_save_dir is None:
        unread[f"{ENVIRONMENT}.max_rendered_episodes"] = f"{ENVIRONMENT}.render_save_dir is null"
    if all(environment.isolation != "process" for environment in section.custom_envs.values()):
        for name in MANAGERS:
            unread[f"{ENVIRONMENT}.{name}.max_env_num_per_worker"] = "no isolation is process"
    return unread


def environment_notices(ajet: AjetSection) -> list[str]:
    """Returns a line for each key of a single environment that has no effect."""
    if ajet.task_reader.type != "environment":
        return []
    return [
        f"ignored: {ENVIRONMENT}.custom_envs.{tag}.{text}"
        for tag, custom in ajet.environment.custom_envs.items()
        for text in _unread_of(custom)
    ]


def _unread_of(custom: CustomEnv) -> list[str]:
    written, unread = custom.model_fields_set, []
    if custom.env_manager_cls == TRAJ_AGENT and "history_length" in written:
        unread.append(
            f"history_length={custom.history_length} ({TRAJ_AGENT} shows the whole conversation)"
        )
    if custom.isolation == "inline" and "step_timeout_s" in written:
        unread.append(f"step_timeout_s={custom.step_timeout_s} (isolation is inline)")
    return unread
