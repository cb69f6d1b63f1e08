"""libyaml writes what PyYAML writes, and reads what it reads."""

import pytest
import yaml

from ajet.core.config import AjetConfig
from ajet.core.config.yaml_codec import from_yaml, to_yaml

TEXTS = {
    "long": "word " * 60, "one word": "x" * 300, "letters": "é 名 " * 40, "lines": "a\n\n b \n",
    "marks": ["a: b # c", "- x", "'q'", "\t", "\x07", "1e-4", "null", "", "~", "{", "&a"],
    "alone": "a\ud83db",
}  # fmt: skip


@pytest.mark.parametrize("values", [AjetConfig().to_dict(), TEXTS, {"b": {}, "a": [[], None]}])
def test_what_is_written_is_what_pyyaml_writes_and_is_read_again(values):
    text = to_yaml(values)
    assert text == yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    assert from_yaml(text) == values


def test_what_nests_too_deeply_is_an_error():
    with pytest.raises(yaml.YAMLError):
        from_yaml("[" * 100_000)
