"""`ajet.trainer_common`: the length of a run, the algorithm, and what is written when."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from ajet.core.config.algorithm import AlgorithmConfig, CriticConfig
from ajet.core.config.section import NoEffect, NotBuilt, Section

ONE_PROCESS = ("debug",)
Logger = Literal["tensorboard", "console", "swanlab", "wandb", "mlflow"]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class OptimConfig(Section):
    """AdamW and its warm-up."""

    lr: float = Field(
        default=1e-6, ge=0, description="Learning rate; 0 changes nothing, as a control."
    )
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=[0.9, 0.999], min_length=2, max_length=2, description="AdamW's decay rates."
    )
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's weight decay.")
    warmup_steps: int = Field(default=0, ge=0, description="Optimizer steps of linear warm-up.")
    grad_clip: float = Field(
        default=1.0, gt=0, description="The gradient's norm is clipped to this."
    )


class LoraConfig(Section):
    """Train low-rank adapters instead of all weights."""

    rank: int = Field(default=0, ge=0, description="Rank of the adapters; 0 trains all weights.")
    alpha: float = Field(
        default=16.0, gt=0, description="Scale of the adapters, divided by the rank."
    )
    target_modules: str | list[str] = Field(
        default="all-linear", description="The layers that get adapters."
    )


class FsdpConfig(Section):
    """Where sharded training keeps its state between steps."""

    param_offload: Annotated[bool, NoEffect("nothing is sharded", on=ONE_PROCESS)] = Field(
        default=True, description="Keep the weights in CPU memory between steps."
    )
    optimizer_offload: Annotated[bool, NoEffect("nothing is sharded", on=ONE_PROCESS)] = Field(
        default=True, description="Keep the optimizer's state in CPU memory between steps."
    )


class TrainerConfig(Section):
    """The run: steps, validation, checkpoints, loss and optimizer."""

    total_epochs: int = Field(
        default=50,
        ge=1,
        description="Passes over the training tasks; rounds of dynamic_sampling add to them.",
    )
    total_training_steps: int | None = Field(
        default=None, ge=0, description="Steps of the run; null is total_epochs passes."
    )
    val_before_train: bool = Field(
        default=False, description="Validate once before the first step."
    )
    val_pass_n: int = Field(default=4, ge=1, description="Episodes of one validation task.")
    test_freq: int = Field(default=20, description="Validate every N steps; 0 or less never.")
    save_freq: int = Field(
        default=20, description="Save a checkpoint every N steps; 0 or less at the end."
    )
    resume: str = Field(
        default="auto",
        min_length=1,
        description="auto continues the run folder, disable starts anew, or a checkpoint's path.",
    )
    max_checkpoints_to_keep: int = Field(
        default=2, ge=2, description="Newest checkpoints that are kept."
    )
    logger: Annotated[list[Logger], BeforeValidator(_as_list)] = Field(
        default=["tensorboard"],
        description="Where metrics go: tensorboard, console, swanlab, wandb, mlflow; or a list.",
    )
    algorithm: AlgorithmConfig = Field(
        default=AlgorithmConfig(), description="Advantages and the loss."
    )
    critic: CriticConfig = Field(default=CriticConfig(), description="The critic of gae.")
    ppo_epochs: int = Field(
        default=1, ge=1, description="Passes over a step's samples, each of mini_batch_num parts."
    )
    mini_batch_num: int = Field(
        default=1, ge=1, description="Optimizer steps of one pass over a step's samples."
    )
    optim: OptimConfig = Field(default=OptimConfig(), description="The optimizer.")
    lora: LoraConfig = Field(default=LoraConfig(), description="Low-rank adapters.")
    use_kl_loss: bool = Field(
        default=True, description="Add the KL to the starting model to the loss."
    )
    kl_loss_coef: float = Field(default=0.002, ge=0, description="Weight of that KL.")
    kl_loss_type: Literal["low_var_kl", "k1", "k2"] = Field(
        default="low_var_kl", description="Estimator of that KL; low_var_kl is k3."
    )
    batch_layout: Literal["auto", "padded", "packed", "tree"] = Field(
        default="auto", description="How samples are laid out; every layout has the same gradient."
    )
    max_tokens_per_micro_batch: int = Field(
        default=4096,
        ge=1,
        description="Tokens of one forward pass; the gradient does not depend on it.",
    )
    torch_threads: int | None = Field(
        default=None, ge=1, description="CPU threads of torch; null leaves torch's choice."
    )
    nnodes: Annotated[int, NoEffect("the run is one process", on=ONE_PROCESS)] = Field(
        default=1, ge=1, description="Machines of the cluster."
    )
    n_gpus_per_node: Annotated[int, NoEffect("the run is one process", on=ONE_PROCESS)] = Field(
        default=8, ge=0, description="GPUs of one machine."
    )
    fsdp_config: FsdpConfig = Field(default=FsdpConfig(), description="Sharded training.")
    ulysses_sequence_parallel_size: Annotated[
        int, NoEffect("sequences are not split over devices", on=ONE_PROCESS)
    ] = Field(default=1, ge=1, description="Devices that share one sequence.")
    checkpoint_base_dir: Annotated[
        str | None, NotBuilt("checkpoints are in the run folder: choose that with --exp-dir")
    ] = Field(default=None, description="Has its home at ajet.experiment_dir.")
    save_trajectory_as_json_file: Annotated[
        bool, NotBuilt("every episode is in the run folder's episodes.sqlite: see `ajet view`")
    ] = Field(default=False, description="Write every episode as a JSON file.")

    @model_validator(mode="after")
    def _one_logger_at_least(self) -> Self:
        if not self.logger:
            raise ValueError("logger: name at least one of tensorboard, console, …")
        return self
