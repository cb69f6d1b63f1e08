import json

import pytest
from logview_fixtures import byte_tokenizer, write_run

from ajet.core.errors import ModelError
from ajet.read.logview.token_text import TokenText, readable


def content(tokenizer):
    return json.loads(tokenizer.to_str())


def test_a_part_of_a_character_is_shown_as_bytes():
    text = TokenText(content(byte_tokenizer()))
    smile = list("🙂".encode())  # F0 9F 99 82
    assert text([ord("a"), 256, smile[2], smile[3], ord("\n"), ord(" ")]) == [
        "a",
        r"\xf0\x9f",
        r"\x99",
        r"\x82",
        "\n",
        " ",
    ]


def test_a_special_token_is_shown_by_its_name():
    assert TokenText(content(byte_tokenizer()))([257]) == ["<|im_end|>"]


def test_an_id_without_a_token_is_shown_as_the_id():
    assert TokenText(content(byte_tokenizer()))([99999]) == ["<99999>"]
    assert TokenText(None)([5]) == ["<5>"]


def test_whole_characters_stay_whole():
    assert readable("café ✓".encode()) == "café ✓"
    assert readable(b"\xff ok") == r"\xff ok"


def test_sentencepiece_tokens_are_shown_as_text():
    from tokenizers import Tokenizer, decoders, models

    tokenizer = Tokenizer(models.BPE(vocab={"▁the": 0, "<0x0A>": 1, "<0xE2>": 2}, merges=[]))
    tokenizer.decoder = decoders.Metaspace()
    assert TokenText(content(tokenizer))([0, 1, 2]) == [" the", "\n", r"\xe2"]


def test_the_tokenizer_is_that_of_the_run_folder(tmp_path):
    folder = write_run(tmp_path / "run")
    assert TokenText.of(folder)([104]) == ["<104>"]
    folder.tokenizer.mkdir()
    byte_tokenizer().save(str(folder.tokenizer / "tokenizer.json"))
    assert TokenText.of(folder)([104, 105]) == ["h", "i"]


def test_tokens_with_scores_are_numbered_by_their_places():
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁a", -1.0), ("b", -2.0)], 0))
    tokenizer.add_special_tokens(["</s>"])
    assert TokenText(content(tokenizer))([1, 2, 3, 4]) == [" a", "b", "</s>", "<4>"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": {"vocab": 3}, "added_tokens": []}'])
def test_a_damaged_tokenizer_is_one_line(tmp_path, text):
    folder = write_run(tmp_path / "run")
    folder.tokenizer.mkdir()
    (folder.tokenizer / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=r"tokenizer\.json: the tokenizer does not load: \w+Error"):
        TokenText.of(folder)
