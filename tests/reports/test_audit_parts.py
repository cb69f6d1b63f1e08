"""An audit in parts has the figures of the whole, in any number of processes."""

import pytest

from ajet.core.errors import CheckpointError
from ajet.core.record.episode_reader import EpisodeFilter
from ajet.core.record.recorded_run import RecordedRun
from ajet.reports import audit_parts
from ajet.reports.audit_report import AuditReport
from tests.reports.test_audit import TOKENIZER, recorded, tamper
from tests.run_folders import give_config

ALL = EpisodeFilter()
