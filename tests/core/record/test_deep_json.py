"""A file of a run folder that nests a hundred thousand lists is one line, or is left out."""

import pytest

from ajet.core.errors import CheckpointError
from ajet.core.record.origin import RunOrigin
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.summary import RunSummary
from ajet.core.run.attempt_record import earlier_identity

DEEP = "[" * 100_000


@pytest.mark.parametrize("read", [RunOrigin.read, RunSummary.read])
def test_a_file_that_nests_too_deeply_is_one_line(tmp_path, read):
    file = tmp_path / "file.json"
    file.write_text(DEEP)
    with pytest.raises(CheckpointError, match=r"file\.json cannot be read: .*recursion") as caught:
        read(file)
    assert "\n" not in str(caught.value)


def test_a_config_that_nests_too_deeply_is_one_line(tmp_path):
    folder = RunFolder(tmp_path)
    folder.config_yaml.write_text(DEEP)
    with pytest.raises(CheckpointError, match=r"config\.yaml cannot be read") as caught:
        earlier_identity(folder)
    assert "\n" not in str(caught.value)
