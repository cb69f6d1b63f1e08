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
def test_yaml_is_written_as_pyyaml_does_and_read_back(values):
    text = to_yaml(values)
    assert text == yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    assert from_yaml(text) == values


@pytest.mark.parametrize("text", ["a: [1", "a: b: c", "\ta: 1", "a: \x00", "a: !!python/name:os.x"])
def test_a_mistake_is_described_in_pyyamls_words(text):
    with pytest.raises(yaml.YAMLError) as expected:
        yaml.safe_load(text)
    with pytest.raises(yaml.YAMLError) as found:
        from_yaml(text)
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_nothing_is_none():
    assert from_yaml("") is None and from_yaml("# a comment") is None
