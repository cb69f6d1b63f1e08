"""Defines `ajet.harness`: how command-line agents run as workflows."""

from typing import Literal

from pydantic import Field

from ajet.core.config.section import Section


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
