"""Defines `ajet.trainer_common`: the length of a run, the algorithm, and what is written when."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from ajet.core.config.algorithm import AlgorithmConfig, CriticConfig
from ajet.core.config.section import DeviceMapping, NoEffect, Section

ONE_PROCESS = ("debug",)
ONE_PROCESS_ONLY = NoEffect("the run is one process", on=ONE_PROCESS)
Logger = Literal["tensorboard", "console", "swanlab", "wandb", "mlflow", "prometheus"]
TraceTarget = Literal["otlp", "mlflow"]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class OptimConfig(Section):
    """Configures AdamW and its warm-up."""

    lr: float = Field(
        default=1e-6, ge=0, description="Learning rate; 0 changes nothing, as a control."
    )
    betas: list[Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=[0.9, 0.999], min_length=2, max_length=2, description="AdamW's decay rates."
    )
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's weight decay.")
    warmup_steps: int = Field(default=0, ge=0, description="Optimizer steps of linear warm-up.")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant",
        description="The rate after the warm-up, until total_training_steps.",
    )
    min_lr_ratio: float = Field(
        default=0.0, ge=0, le=1, description="Share of the rate that linear and cosine end at."
    )
    grad_clip: float = Field(
        default=1.0, gt=0, description="The gradient's norm is clipped to this."
    )


ADAPTER_NAME = r"^[^./\s]+$"
AdapterName = Annotated[str, Field(pattern=ADAPTER_NAME)]


class LoraConfig(Section):
    """Configures the training of low-rank adapters instead of all weights."""

    rank: int = Field(default=0, ge=0, description="Rank of the adapters; 0 trains all weights.")
    alpha: float = Field(
        default=16.0, gt=0, description="Scale of the adapters, divided by the rank."
    )
    target_modules: str | list[str] = Field(
        default="all-linear", description="The layers that get adapters."
    )
    adapters: list[AdapterName] = Field(
        default=[],
        description="Names of adapters that learn apart over one base, each from the calls that "
        "adapter_by gives it; empty trains one for all calls.",
    )
    adapter_by: str = Field(
        default="agent_name",
        pattern=r"^(agent_name|target_tag|metadata\..+)$",
        description="What names a call's adapter: agent_name, target_tag, or metadata.KEY, a key "
        "of the task's metadata.",
    )

    @property
    def total_rank(self) -> int:
        """Returns the rank of one adapter that has as many weights as all of them together."""
        return self.rank * max(1, len(self.adapters))


class FsdpConfig(Section):
    """Configures how the trainer's ranks store and compute the model in shards."""

    param_offload: Annotated[bool, ONE_PROCESS_ONLY] = Field(
        default=False,
        description="Keep the shards, and the optimizer's state with them, in CPU memory: slower, "
        "for models that `ajet plan` finds too large for the GPUs.",
    )
    activation_checkpointing: bool | Literal["auto"] = Field(
        default="auto",
        description="Compute activations again in the backward pass, to save memory; auto does on "
        "GPUs and for models of 33 million weights or more.",
    )
    param_dtype: Annotated[Literal["auto", "bfloat16", "float32"], ONE_PROCESS_ONLY] = Field(
        default="auto",
        description="auto, or the same as ajet.model.dtype; shards are float32 or wider.",
    )
    reshard_after_forward: Annotated[bool, ONE_PROCESS_ONLY] = Field(
        default=True, description="Gather a layer's weights again for its backward pass."
    )
    keep_gathered: Annotated[bool, ONE_PROCESS_ONLY] = Field(
        default=False,
        description="Keep weights gathered and gradients unsharded between the micro-batches of an "
        "optimizer step: less communication, for 6 bytes a parameter on every GPU.",
    )


class SamplerGapConfig(Section):
    """Configures what happens when the sampler's log-probabilities and the trainer's differ."""

    action: Literal["warn", "stop"] = Field(
        default="warn",
        description="Above max_kl: warn says so once; stop ends the run with a checkpoint and exit "
        "code 1.",
    )
    max_kl: float = Field(
        default=0.05,
        gt=0,
        description="Largest KL(sampler || trainer) in nats, on average over a step's tokens.",
    )


class TrainerConfig(Section):
    """Configures the run: steps, validation, checkpoints, loss and optimizer."""

    total_epochs: int = Field(
        default=50,
        ge=1,
        description="Passes over the training tasks; rounds of dynamic_sampling add to them.",
    )
    total_training_steps: int | None = Field(
        default=None, ge=0, description="Steps of the run; null is total_epochs passes."
    )
    val_before_train: bool | None = Field(
        default=None,
        description="Validate before the first step, and at the end to compare; null: if test_freq "
        "is above 0.",
    )
    val_pass_n: int | None = Field(
        default=None,
        ge=1,
        description="Episodes of one validation task; null is 4, or 1 where validation is greedy.",
    )
    val_second_decoding: bool = Field(
        default=True,
        description="Where held-out tasks are validated: before the first step and after the last "
        "also in the other decoding, greedy, or sampled as in training where validation is greedy.",
    )
    test_freq: int = Field(default=20, description="Validate every N steps; 0 or less never.")
    save_freq: int = Field(
        default=20, description="Save a checkpoint every N steps; 0 or less at the end."
    )
    save_in_background: bool | Literal["auto"] = Field(
        default="auto",
        description="Write checkpoints from a copy during the next step; auto does on GPUs, whose "
        "state is copied anyway, unless clients run the episodes.",
    )
    resume: str = Field(
        default="auto",
        min_length=1,
        description="auto continues the run folder, disable starts anew, or a checkpoint's path.",
    )
    accept_changes: bool = Field(
        default=False,
        description="Go on with a run that stopped, though workflow, judge, data or settings "
        "differ since.",
    )
    max_checkpoints_to_keep: int = Field(
        default=2, ge=2, description="Newest checkpoints that are kept."
    )
    logger: Annotated[
        list[Logger], BeforeValidator(_as_list, json_schema_input_type=Logger | list[Logger])
    ] = Field(
        default=["tensorboard"],
        description="Where metrics go: tensorboard, console, swanlab, wandb, mlflow, prometheus; "
        "or a list.",
    )
    traces: Annotated[
        list[TraceTarget],
        BeforeValidator(_as_list, json_schema_input_type=TraceTarget | list[TraceTarget]),
    ] = Field(
        default=[],
        description="Where traces of episodes go while the run writes them: otlp, mlflow; or both.",
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
    sampler_gap: SamplerGapConfig = Field(
        default=SamplerGapConfig(), description="Sampler and trainer drifting apart."
    )
    lora: LoraConfig = Field(default=LoraConfig(), description="Low-rank adapters.")
    use_kl_loss: bool = Field(
        default=True, description="Add the KL to the starting model to the loss."
    )
    kl_loss_coef: float = Field(default=0.002, ge=0, description="Weight of that KL.")
    kl_loss_type: Literal["low_var_kl", "low_var_kl+", "k1", "k2"] = Field(
        default="low_var_kl",
        description="Estimator of that KL; low_var_kl is k3, + has the gradient of k2.",
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
        default=None,
        ge=1,
        description="CPU threads of torch; null leaves torch's choice, and gives a trainer rank "
        "with a GPU its share of its node's CPUs.",
    )
    nnodes: Annotated[int, ONE_PROCESS_ONLY] = Field(
        default=1, ge=1, description="Machines of the cluster."
    )
    n_gpus_per_node: Annotated[
        Annotated[int, Field(ge=0)] | Literal["auto"],
        ONE_PROCESS_ONLY,
    ] = Field(default="auto", description="GPUs of one machine; auto takes all it has, 0 the CPU.")
    n_trainer_ranks: Annotated[int | None, ONE_PROCESS_ONLY] = Field(
        default=None,
        ge=1,
        description="Processes that train; null is one for each of the trainer's GPUs, or one "
        "on CPU.",
    )
    device_mapping: Annotated[DeviceMapping, ONE_PROCESS_ONLY] = Field(
        default=None,
        description="The trainer's GPUs by their number in the cluster, as [0, 1] or "
        "list(range(0,8)); null leaves the choice.",
    )
    fsdp_config: FsdpConfig = Field(default=FsdpConfig(), description="Sharded training.")
    ulysses_sequence_parallel_size: Annotated[
        int, NoEffect("sequences are not split over devices", on=ONE_PROCESS)
    ] = Field(default=1, ge=1, description="Devices that share one sequence.")

    @model_validator(mode="after")
    def _one_logger_at_least(self) -> Self:
        if not self.logger:
            raise ValueError("logger: name at least one of tensorboard, console, …")
        return self
