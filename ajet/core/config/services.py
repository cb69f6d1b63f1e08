"""Defines small sections of `ajet:`: timelines, debugging, HTTP servers, command-line agents."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ajet.core.config.section import ImportPath, Section


class ContextTrackerConfig(Section):
    """Configures how an episode's tokens are tracked."""

    check_drift: Literal["none", "first", "all"] = Field(
        default="first",
        description="Which members of a group count where a fresh render of their messages would "
        "have given other token ids; training does not change by it.",
    )
    log_tool_format_check: bool = Field(
        default=False,
        description="Log how many replies of a step had a wrong_toolcall, which must be in "
        "rollout.compute_madness_checklist.",
    )
    log_tool_format_error_detail: bool = Field(
        default=False, description="With log_tool_format_check: a line for each, and why."
    )
    detect_timeline_snap: bool = Field(
        default=False, description="Log how many timelines of a step broke off, and why."
    )


class DebugConfig(Section):
    """Configures `ajet debug`: a few tasks, shown in full."""

    debug_first_n_tasks: int = Field(default=2, ge=1, description="Tasks that `ajet debug` runs.")
    debug_max_parallel: int = Field(
        default=4, ge=1, description="Of these, so many at the same time."
    )
    debug_max_reply_tokens: int | None = Field(
        default=512,
        ge=1,
        description="Tokens of one reply there at most; null is "
        "rollout.max_response_length_in_one_turn.",
    )


class InterchangeServerConfig(Section):
    """Configures the HTTP gateway to the model in training."""

    interchange_server_port: Annotated[int, Field(ge=1, le=65535)] | Literal["auto"] = Field(
        default="auto", description="The gateway's port on loopback; auto takes a free one."
    )


class LearnConfig(Section):
    """Configures `ajet serve --learn`: a model that is served and learns from feedback."""

    sessions_per_round: int = Field(
        default=64,
        ge=1,
        description="Sessions with feedback that start a round: a training, an evaluation and a "
        "decision.",
    )
    max_staleness: int = Field(
        default=2,
        ge=0,
        description="Versions promoted since a session's oldest token; an older session is not "
        "trained.",
    )
    excluded_clients: list[str] = Field(
        default=[], description="Clients whose feedback is stored and never trained."
    )
    max_false_exclusion: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Clients are left out of rounds whose feedback contradicts that of others on "
        "the same conversations so often that an honest client ever would with this probability "
        "at most; null: none.",
    )
    niceness: int = Field(
        default=10,
        ge=0,
        le=19,
        description="How much lower the priority of the learner's process is than the server's.",
    )
    version_for: Literal["session", "request"] = Field(
        default="session",
        description="When another version answers: session keeps that of a session's first reply "
        "as long as the server holds it, request takes the newest for each request.",
    )
    num_versions: int = Field(
        default=2, ge=1, description="Versions that the server holds, the newest ones."
    )
    next_message: ImportPath | None = Field(
        default=None,
        description="file.py->function of your own, from the messages of a session whose user has "
        "answered to a reward of what was said so far, or None.",
    )
    promote: Literal["interval", "difference"] = Field(
        default="interval",
        description="What must reach min_difference for a version to be promoted: the lower end of "
        "the 95 % interval of held-out success over that of the served version, or its mean.",
    )
    min_difference: float = Field(
        default=0.0, ge=-1, le=1, description="The least difference of held-out success."
    )
    shadow_sessions: int = Field(
        default=32,
        ge=0,
        description="Recorded sessions of a round of which both versions answer a call anew; 0: "
        "none.",
    )
    max_shadow_kl: float | None = Field(
        default=None,
        gt=0,
        description="The KL of a token from the served version to the new one, on the sessions of "
        "a round, above which it is rolled back; null: none.",
    )


class SharesConfig(Section):
    """Configures which client runs how many groups of a batch. Weights need not add up to 1."""

    start: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default={},
        description="The weight of each client by its name (`EpisodeClient(client=…)`), in the "
        "first step; none: whoever asks first.",
    )
    end: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default={}, description="The weights after `steps` steps; none: those of start."
    )
    steps: int = Field(
        default=1, ge=1, description="Steps over which the weights go from start to end."
    )
    schedule: Literal["linear", "cosine"] = Field(
        default="linear", description="How they go there: in a line, or along half a cosine."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, weights in (("start", self.start), ("end", self.end)):
            if weights and not sum(weights.values()):
                raise ValueError(f"{name}: a weight must be above 0")
        if self.end and self.end.keys() != self.start.keys():
            raise ValueError("start and end must name the same clients")
        return self


class ServeConfig(Section):
    """Configures `ajet serve`: episodes that clients run."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="The address that `ajet serve` listens on; clients of other machines need one "
        "of this machine's, or 0.0.0.0. There is no TLS.",
    )
    port: Annotated[int, Field(ge=1, le=65535)] | Literal["auto"] = Field(
        default=8182, description="The port of `ajet serve`; auto takes a free one."
    )
    heartbeat_s: float = Field(
        default=120.0,
        gt=0,
        description="Seconds of a client's silence, without a call of the model, after which its "
        "episode ends as env_error.",
    )
    tasks: Literal["config", "client"] = Field(
        default="config",
        description="Whose tasks the episodes run: config, those of task_reader, or client, which "
        "brings one to each episode; task_reader then says only how many there are.",
    )
    shares: SharesConfig = Field(
        default=SharesConfig(),
        description="With tasks: client, how many groups of each batch are whose.",
    )
    learn: LearnConfig = Field(
        default=LearnConfig(), description="`ajet serve --learn`: learning from feedback."
    )


class HarnessLimits(Section):
    """Configures what one program and all that it starts may use; null sets no limit."""

    memory_mib: int | None = Field(
        default=8192, ge=1, description="MiB of memory of all its processes together."
    )
    num_processes: int | None = Field(
        default=512, ge=1, description="Processes, with each of their threads, at a time."
    )
    cpu_s: int | None = Field(
        default=7200, ge=1, description="Seconds of CPU of all its processes together."
    )
    folder_mib: int | None = Field(
        default=8192, ge=1, description="MiB in its folders, and of one file."
    )
    tmp_mib: int | None = Field(
        default=1024, ge=1, description="MiB of memory for /tmp in a sandbox."
    )


class HarnessConfig(Section):
    """Configures the workflows `harness:…`, and the sandbox of the judge hidden_tests."""

    sandbox: Literal["bwrap", "podman", "docker", "none"] = Field(
        default="bwrap",
        description="What confines the program and the hidden tests: bwrap, podman, docker, or "
        "none, with which they may do what you may.",
    )
    image: str | None = Field(
        default=None, description="The image of podman or docker; none is pulled."
    )
    limits: HarnessLimits = Field(
        default=HarnessLimits(),
        description="What a program may use; one that uses more is ended, and judged as truncated.",
    )
    program: str | None = Field(
        default=None,
        description="The program's path; null looks its usual name up on PATH (with podman "
        "and docker: the image's PATH).",
    )
    command: list[str] = Field(
        default=[],
        description="The command line of harness:cmd, with {prompt}, {base_url}, {anthropic_url}, "
        "{api_key}, {model}, {folder} and {shown}, the first of shown_folders.",
    )
    arguments: list[str] = Field(
        default=[], description="Further arguments of the other harnesses, before the prompt."
    )
    shown_folders: list[str] = Field(
        default=[],
        description="Further folders that the program may read, besides the system's and its own; "
        "relative ones are resolved from the YAML's folder.",
    )
    episode_folders: str | None = Field(
        default=None,
        description="Where the folders of episodes are made, and kept; null makes them among the "
        "temporary files, and removes each once its episode is judged.",
    )
    max_output: int = Field(
        default=4000,
        ge=1,
        description="Characters that an episode keeps of the end of what the program wrote, of "
        "its standard output and its standard error.",
    )
    max_diff: int = Field(
        default=20000, ge=0, description="Characters that an episode keeps of the folder's changes."
    )
