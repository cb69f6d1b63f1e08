"""Provides a later path of `ajet.default_config.ajet_default`."""

from ajet.compat.agentjet.default_config.ajet_default import (
    AjetTaskReader,
    HuggingfaceDatRepo,
    JsonlDatasetFile,
    JsonlTrainingFp,
)

__all__ = ["AjetTaskReader", "HuggingfaceDatRepo", "JsonlDatasetFile", "JsonlTrainingFp"]
