"""Defines `ajet.rollout`: how episodes are run and tokens are sampled."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from ajet.core.config.section import DeviceMapping, NoEffect, Section

IN_PROCESS = ("debug",)
ONE_ENGINE = NoEffect("there is one engine, in process", on=IN_PROCESS)
MAX_NUM_SEQS = 256
"""The default limit on an inference server's sequences: each costs memory, and those that do not
fit into the cache wait anyway."""
Check = Literal["nonsense", "wrong_toolcall", "format_type_1", "non_ascii"]
PARSER_ALIASES = {
    "llama3_json": "llama3",
    "deepseek_v3": "deepseek",
    "qwen3_xml": "qwen3_coder",
    "glm45": "glm",
    "glm47": "glm",
    "gemma4": "gemma",
    "functiongemma": "gemma",
    "nemotron_json": "nemotron",
}
ToolParser = Literal[
    "auto", "hermes", "qwen3_coder", "llama3", "mistral", "deepseek", "gpt_oss", "glm", "kimi_k2",
    "minimax_m2", "json", "nemotron", "gemma",
]  # fmt: skip


def _parser_name(name: object) -> object:
    """Translates other systems' spellings, such as `gpt-oss` and `llama3_json`."""
    if not isinstance(name, str):
        return name
    plain = name.replace("-", "_")
    return PARSER_ALIASES.get(plain, plain)


class RouterConfig(Section):
    """Configures which engine takes a request, and how engines' health is checked."""

    skew: Annotated[int, ONE_ENGINE] = Field(
        default=32,
        ge=0,
        description="An episode leaves its engine, and the prefix cached there, when that has more "
        "than so many requests above the least busy one.",
    )
    max_tries: Annotated[int, ONE_ENGINE] = Field(
        default=3, ge=1, description="Engines that a request is sent to until it fails."
    )
    health_interval_s: Annotated[float, ONE_ENGINE] = Field(
        default=5.0, gt=0, description="Seconds between two health checks of an engine."
    )
    max_failed_checks: Annotated[int, ONE_ENGINE] = Field(
        default=3, ge=1, description="Failed checks in a row after which an engine is replaced."
    )


class InferenceServerConfig(Section):
    """Configures vLLM and SGLang servers."""

    python: str | None = Field(
        default=None,
        description="The Python that has the server installed; null is that of `ajet servers "
        "install`, or the one that runs ajet.",
    )
    start_timeout_s: float = Field(
        default=900.0, gt=0, description="Seconds until a server that is not healthy is an error."
    )
    grammars: bool = Field(
        default=False,
        description="Whether vLLM and SGLang load the tokenizer and llguidance, which "
        "response_format and strict tools need there. The in-process engine needs no setting.",
    )


class MultiTurnConfig(Section):
    """Configures limits on an episode's model calls, and the tools and turns of ajet's agents."""

    max_steps: int = Field(default=30, ge=1, description="Model calls of one episode at most.")
    system_prompt: str | None = Field(
        default=None,
        description="System prompt of ajet's own agents; a row's own system message comes first.",
    )
    tool_config_path: str | None = Field(
        default=None, description="YAML that lists the tools of tool_agent."
    )
    interaction_config_path: str | None = Field(
        default=None, description="YAML of the simulated user that tool_agent talks to."
    )
    max_assistant_turns: int | None = Field(
        default=None, ge=1, description="Replies of tool_agent; null is up to max_steps."
    )
    max_user_turns: int | None = Field(
        default=None, ge=0, description="Answers of the simulated user; null is up to max_steps."
    )
    max_parallel_calls: int = Field(
        default=8,
        ge=1,
        description="Tool calls of one reply that are run; further ones get an error as answer.",
    )
    max_tool_calls: int | None = Field(
        default=None,
        ge=0,
        description="Tool calls of an episode that are run; further ones get an error as answer.",
    )
    max_tool_response_length: int = Field(
        default=1024, ge=1, description="Tokens of a tool's answer that the model is shown."
    )
    tool_response_truncate_side: Literal["left", "middle", "right"] = Field(
        default="middle",
        description="Which part of a long answer is kept: left its beginning, right its end, "
        "middle both.",
    )
    tool_timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="Seconds until a tool call gets an error, or a simulated user ends.",
    )
    max_consecutive_invalid_calls: int = Field(
        default=3,
        ge=1,
        description="tool_agent stops after so many replies in a row with no call that can be run.",
    )


SUMMARY_PROMPT = (
    "Your context is full. Write a summary of all you have learnt and done so far, and of what is "
    "left to do. You will go on with the task and this summary alone."
)


class CompactionConfig(Section):
    """Configures how a conversation that outgrows the context is compacted: the model writes a
    summary and continues from it. Read by traj_env_agent, tool_agent, react_agent, the models of
    LangChain and AgentScope, and model_tuner.compaction()."""

    enable: bool = Field(default=False, description="Compact conversations.")
    at: float | None = Field(
        default=None,
        gt=0,
        description="How long a prompt may be: a share of the context up to 1, above it tokens. "
        "null: as long as its reply and a summary still fit, which is the limit in any case.",
    )
    prompt: str = Field(
        default=SUMMARY_PROMPT,
        min_length=1,
        description="The user message that asks for the summary.",
    )
    max_summary_tokens: int = Field(default=512, ge=1, description="Tokens of one summary at most.")
    keep_last_messages: int = Field(
        default=1,
        ge=1,
        description="Last messages that follow the summary, with the call of a tool's answer.",
    )


Decoding = Literal["greedy", "sampled"]
"""How a validation's replies are drawn: greedily, or sampled as in training."""


class ValidationSampling(Section):
    """Configures how tokens are sampled in validation episodes; null is as in training."""

    temperature: float | None = Field(
        default=0.0,
        ge=0,
        description="Validation temperature; 0 is greedy, null is as in training.",
    )
    top_k: int | None = Field(
        default=-1, ge=-1, description="Validation top-k; -1 keeps every token."
    )
    top_p: float | None = Field(default=1.0, gt=0, le=1, description="Validation top-p.")
    do_sample: bool | None = Field(
        default=None, description="Must agree with temperature where given; null follows it."
    )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @model_validator(mode="after")
    def _do_sample_agrees(self) -> Self:
        if self.do_sample is not None and self.do_sample != (self.temperature != 0):
            raise ValueError(
                f"do_sample: {self.do_sample} contradicts temperature: {self.temperature}; "
                "leave do_sample out"
            )
        return self


class AgentConfig(Section):
    """Configures where workflows run on a cluster, and verl's agent loops."""

    agent_loop_config_path: str | None = Field(
        default=None,
        description="YAML that lists verl's agent loops: - name: …, _target_: module.Class.",
    )

    num_workers: Annotated[int | None, NoEffect("workflows run in this process", on=IN_PROCESS)] = (
        Field(
            default=None,
            ge=1,
            description="Processes that run workflows, max_env_worker episodes between them; null "
            "is one for every two CPU cores, up to 8.",
        )
    )


class RolloutConfig(Section):
    """Configures episodes: the agent, their number and limits, and what happens to failed ones."""

    user_workflow: str | None = Field(
        default=None,
        description="The agent: path/file.py->Class, package.module->Class or an agent's name; "
        "null is single_turn_agent. A row's agent_name comes first.",
    )
    agent_modules: list[str] = Field(
        default=[], description="Files or modules that @register agents which rows name."
    )
    name: Literal["auto", "in_process", "vllm", "sglang"] = Field(
        default="auto",
        description="Who samples: in_process, vllm or sglang; auto is in_process on CPU, on GPUs "
        "the server that is installed. Backbone debug takes in_process where there is none.",
    )
    router: RouterConfig = Field(
        default=RouterConfig(), description="How requests find an inference engine."
    )
    server: InferenceServerConfig = Field(
        default=InferenceServerConfig(), description="How inference servers are started."
    )
    num_repeat: int = Field(
        default=4, ge=1, description="Episodes of one task in a step: its group."
    )
    group_size_redundancy: int = Field(
        default=0,
        ge=0,
        description="Further episodes of a group; it ends when num_repeat are done, the rest stop.",
    )
    temperature: float = Field(default=0.9, gt=0, description="Sampling temperature in training.")
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="Sample among the likeliest tokens of this mass."
    )
    top_k: int = Field(
        default=-1, ge=-1, description="Sample among the k likeliest tokens; -1 keeps all."
    )
    max_env_worker: int = Field(default=64, ge=1, description="Episodes that run at the same time.")
    max_model_len: int = Field(
        default=18000,
        ge=1,
        description="Tokens of context that the engine serves, prompt and reply.",
    )
    max_response_length_in_one_turn: int = Field(
        default=4096, ge=1, description="Tokens of one reply at most."
    )
    multi_turn: MultiTurnConfig = Field(
        default=MultiTurnConfig(), description="Limits on model calls."
    )
    compaction: CompactionConfig = Field(
        default=CompactionConfig(), description="Summaries of conversations beyond the context."
    )
    val_kwargs: ValidationSampling = Field(
        default=ValidationSampling(), description="Validation sampling."
    )
    episode_timeout_s: float = Field(
        default=600.0,
        gt=0,
        description="Seconds until an episode ends with status timeout, in-process engine's aside.",
    )
    max_wave_wait_s: Annotated[
        float | None, NoEffect("engines of a cluster compute in no waves", on=("verl",))
    ] = Field(
        default=None,
        gt=0,
        description="Seconds that a wave of the in-process engine waits for one call of a tool or "
        "of workflow code, then that episode ends with status timeout; null: episode_timeout_s. "
        "What is computed depends on the clock then.",
    )
    failure_policy: Literal["mask", "retry", "drop_group", "zero"] = Field(
        default="mask",
        description="What happens to a failed episode: mask leaves it out, retry runs it again, "
        "drop_group leaves its group out, zero gives it reward 0.",
    )
    max_retries: int = Field(
        default=2, ge=0, description="Retries of an episode under failure_policy retry."
    )
    max_failure_rate: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="The run stops when more of a step's episodes than this fail.",
    )
    deterministic: bool = Field(
        default=True,
        description="What is computed never depends on timing; false is a little faster.",
    )
    cuda_graphs: bool = Field(
        default=True,
        description="On a CUDA GPU the in-process engine captures a decode step and replays it; "
        "false runs each step eagerly.",
    )
    routing_replay: bool = Field(
        default=False,
        description="Of a mixture-of-experts model: the engine records the experts of each token, "
        "and the trainer computes with them.",
    )
    tool_parser: Annotated[ToolParser, BeforeValidator(_parser_name)] = Field(
        default="auto",
        description="How tool calls are read from replies; auto asks the chat template. "
        "json: plain JSON in a fence or on separate lines, which no template writes.",
    )
    force_disable_toolcalls: bool = Field(
        default=False, description="Offer no tools to the model, whatever the agent passes."
    )
    compute_madness_checklist: list[Check] = Field(
        default=[],
        description="What makes a trained agent's reply malformed. "
        "nonsense: characters that no text has (broken UTF-8, control, private use), or a cycle "
        "repeated without end; letters of every language, mathematics and emoji are text. "
        "wrong_toolcall: a call that cannot be read, names no offered tool, or does not fit the "
        "tool's schema. "
        "format_type_1: anything but <think>…</think> followed by one ```python block. "
        "non_ascii: a character beyond ASCII, whatever its language.",
    )
    agent_madness_termination: bool = Field(
        default=True, description="A malformed reply is the episode's last: no further call."
    )
    agent_madness_reward: float = Field(
        default=-1.0,
        description="Reward of an episode with a malformed reply, in place of the judge's or the "
        "workflow's; it does not count as a success.",
    )
    tensor_model_parallel_size: Annotated[
        int, NoEffect("the model runs in one process", on=IN_PROCESS)
    ] = Field(default=1, ge=1, description="GPUs that share one inference engine.")
    n_vllm_engine: Annotated[int | None, ONE_ENGINE] = Field(
        default=None,
        ge=1,
        description="Inference engines; null is one, or as many as share verl's GPUs.",
    )
    device_mapping: Annotated[DeviceMapping, ONE_ENGINE] = Field(
        default=None,
        description="The engines' GPUs by their number in the cluster, as [0, 1] or "
        "list(range(0,8)); null leaves the choice.",
    )
    agent: AgentConfig = Field(default=AgentConfig(), description="Processes that run agents.")
    max_num_seqs: int | None = Field(
        default=None,
        ge=1,
        description="Sequences that an inference server runs at once; null is max_env_worker, at "
        f"most {MAX_NUM_SEQS}.",
    )
    enable_oversample: bool = Field(
        default=False,
        description="Run more tasks than needed and keep the groups whose rewards vary most.",
    )
    submit_oversample_multiplier: float = Field(
        default=1.5, ge=1, description="How many times more tasks enable_oversample runs."
    )

    @property
    def num_server_seqs(self) -> int:
        return self.max_num_seqs or min(self.max_env_worker, MAX_NUM_SEQS)

    @model_validator(mode="before")
    @classmethod
    def _top_k_zero_is_all(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("top_k") == 0:
            return values | {"top_k": -1}
        return values
