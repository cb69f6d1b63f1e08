"""Defines `ajet.task_reader.tracing`: recorded conversations, and which of them become tasks.

    filters:
      - {type: score, params: {name: correctness, min: 0.5}}
      - {type: deduplication, params: {similarity_threshold: 0.9}, enabled: true}

A filter is checked here, when the config is read; sources/tracing/reader.py applies it.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from ajet.core.config.section import Address, PathOrAddress, Secret, Section
from ajet.core.text.error_text import did_you_mean


def parse_iso_time(text: str) -> datetime:
    """Parses ISO 8601; a time without a zone is UTC."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _iso_time(text: str) -> str:
    try:
        parse_iso_time(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a date: write 2026-01-31 or 2026-01-31T12:00") from None
    return text


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a valid pattern: {error}") from None
    return text


class ScoreParams(Section):
    """Keeps conversations whose score is within a range."""

    name: str | None = Field(default=None, description="The score's name; null takes any.")
    min: float | None = Field(default=None, description="Lowest score that is kept.")
    max: float | None = Field(default=None, description="Highest score that is kept.")


class FeedbackParams(Section):
    """Keeps conversations to which people, or a judge, gave one of these labels."""

    name: str | None = Field(default=None, description="The annotation's name; null takes any.")
    labels: list[str] = Field(min_length=1, description="Labels that are kept.")


class LengthParams(Section):
    """Keeps conversations that are neither too short nor too long; the answer counts."""

    min_messages: int | None = Field(default=None, ge=0, description="Messages at least.")
    max_messages: int | None = Field(default=None, ge=0, description="Messages at most.")
    min_characters: int | None = Field(default=None, ge=0, description="Characters at least.")
    max_characters: int | None = Field(default=None, ge=0, description="Characters at most.")


class ToolUseParams(Section):
    """Keeps conversations with calls of tools, or those without."""

    used: bool = Field(default=True, description="Whether tools were called.")
    names: list[str] = Field(default=[], description="These tools; empty is any.")


class RegexParams(Section):
    """Keeps, or drops, what a regular expression finds."""

    pattern: Annotated[str, AfterValidator(_pattern)] = Field(
        description="Searched for, as Python's re.search."
    )
    field: Literal["query", "answer", "any"] = Field(
        default="query", description="The text that is searched."
    )
    keep: bool = Field(default=True, description="Keep what has it; false drops it.")


class ModelParams(Section):
    """Keeps the answers of some models."""

    names: list[str] = Field(min_length=1, description="Names, also with * as in gpt-4*.")


class DateParams(Section):
    """Keeps conversations of a span of time."""

    after: Annotated[str, AfterValidator(_iso_time)] | None = Field(
        default=None, description="Kept from this date or time on."
    )
    before: Annotated[str, AfterValidator(_iso_time)] | None = Field(
        default=None, description="Kept until before this date or time."
    )


class DeduplicationParams(Section):
    """Configures how alike two questions may be."""

    similarity_threshold: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="Questions at least this similar are alike; the first is kept.",
    )
    db_path: str | None = Field(default=None, description="File that stores the vectors.")
    model: str | None = Field(
        default=None,
        description="The embedding model; null compares the pieces of three characters.",
    )
    api_key: Annotated[str | None, Secret()] = Field(
        default=None, description="Key of the embedding service; null takes the environment's."
    )
    base_url: Address | None = Field(default=None, description="Address of the embedding service.")


FILTERS: dict[str, type[Section]] = {
    "score": ScoreParams,
    "feedback": FeedbackParams,
    "length": LengthParams,
    "tool_use": ToolUseParams,
    "regex": RegexParams,
    "model": ModelParams,
    "date": DateParams,
    "deduplication": DeduplicationParams,
}


def read_filter(number: int, entry: dict[str, Any]) -> tuple[str, Section] | None:
    """Returns the filter's name and its parameters; None for one that is not enabled."""
    label = f"filter {number}"
    for key in entry:
        if key not in ("type", "enabled", "params"):
            raise ValueError(f"{label} has a key {key!r}; a filter has type, params and enabled")
    name, enabled, params = entry.get("type"), entry.get("enabled", True), entry.get("params") or {}
    if name == "llm_evaluate":
        if enabled is False:
            return None
        raise ValueError(
            f"{label}: llm_evaluate would ask a model, which no filter does: let a judge annotate "
            "the traces, and filter by score or feedback"
        )
    if name not in FILTERS:
        raise ValueError(f"{label}: no filter {name!r}; {did_you_mean(str(name), FILTERS)}")
    if not isinstance(enabled, bool) or not isinstance(params, dict):
        raise ValueError(f"{label} ({name}): enabled is true or false, params is a section")
    try:
        checked = FILTERS[name].model_validate(params)
    except ValidationError as error:
        raise ValueError(f"{label} ({name}): {_problem_text(error, FILTERS[name])}") from None
    return (name, checked) if enabled else None


def _problem_text(error: ValidationError, params: type[Section]) -> str:
    details = error.errors(include_url=False)[0]
    key = ".".join(map(str, details["loc"]))
    if details["type"] == "extra_forbidden":
        return f"no parameter {key!r}; there are {', '.join(params.model_fields)}"
    if details["type"] == "missing":
        return f"{key} is missing"
    return f"{key}: {details['msg'].removeprefix('Value error, ')}"


def _checked_filters(filters: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    for number, entry in enumerate(filters, 1):
        read_filter(number, entry)
    return filters


class Tracing(Section):
    """Configures tasks from recorded conversations."""

    base_url: PathOrAddress | None = Field(
        default=None,
        description="A Phoenix server's address, or a path: an SQLite file, a run folder, or spans "
        "as JSON lines.",
    )
    project: str | None = Field(
        default=None, description="The Phoenix server's project; null takes all."
    )
    train_output_path: str | None = Field(
        default=None, description="A JSON-lines file that gets the training tasks."
    )
    validation_fraction: float = Field(
        default=0.3, ge=0, lt=1, description="Share of the tasks that is held out."
    )
    filters: Annotated[list[dict[str, Any]], AfterValidator(_checked_filters)] = Field(
        default=[],
        description="What is kept: score, feedback, length, tool_use, regex, model, date, "
        "deduplication.",
    )
