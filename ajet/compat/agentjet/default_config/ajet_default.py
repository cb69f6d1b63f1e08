"""Provides AgentJet's `ajet.default_config.ajet_default`: where a swarm client's tasks are."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["AjetTaskReader", "HuggingfaceDatRepo", "JsonlDatasetFile", "JsonlTrainingFp"]


@dataclass
class HuggingfaceDatRepo:
    """A data set and its config (`dataset_name`); set HTTPS_PROXY for a proxy."""

    dataset_path: str | None = None
    dataset_name: str | None = None
    training_split: str = "train"
    validation_split: str | None = "validation"
    http_proxy_address: str = ""


@dataclass
class JsonlTrainingFp:
    """One file of JSON lines."""

    file_path: str | None = None


@dataclass
class JsonlDatasetFile:
    """The files of training and of validation."""

    training: JsonlTrainingFp = field(default_factory=JsonlTrainingFp)
    validation: JsonlTrainingFp = field(default_factory=JsonlTrainingFp)


@dataclass
class AjetTaskReader:
    """The settings of a reader, as `RouterTaskReader` takes them."""

    type: str = "huggingface_dat_repo"
    huggingface_dat_repo: HuggingfaceDatRepo = field(default_factory=HuggingfaceDatRepo)
    jsonl_dataset_file: JsonlDatasetFile = field(default_factory=JsonlDatasetFile)
