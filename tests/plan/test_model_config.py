"""Where a model's config is looked for, and what is refused in one line."""

import json
from pathlib import Path

import numpy as np
import pytest

from ajet.core.errors import ModelError
from ajet.plan.model_config import find_config, read_config, read_config_file, stored_parameters
from ajet.plan.model_shape import shape_of


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "transformers cannot read the model's config: "),
        ('{"model_type": "no_such_family"}', "model type `no_such_family`"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "hidden_size"),
        ("[]", "not a JSON object"),
        ("{", "cannot be read as a model's config.json"),
    ],
)
def test_a_config_that_cannot_be_read_is_one_line(tmp_path, text, message):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ModelError) as error:
        read_config_file(file)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert str(error.value).startswith(str(file))


def test_the_headers_of_safetensors_state_the_number_of_weights(tmp_path):
    folder = find_config("embedded:math", download=False).parent
    assert stored_parameters(folder) == shape_of(read_config("embedded:math"), "math").parameters
    assert stored_parameters(tmp_path) is None
    packed = b'{"w": {"dtype": "U8", "shape": [4, 4], "data_offsets": [0, 16]}}'
    (tmp_path / "model.safetensors").write_bytes(len(packed).to_bytes(8, "little") + packed)
    assert stored_parameters(tmp_path) is None  # two numbers of 4 bits in each
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    assert stored_parameters(tmp_path) is None


def test_where_a_config_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_config(str(tmp_path), download=False) == tmp_path / "config.json"
    (tmp_path / "m.txt").touch()
    for path in (str(tmp_path / "m.txt"), "no/where.gguf", "no-such/model", "a b"):
        with pytest.raises(ModelError, match=r"config\.json"):
            find_config(path, download=False)
    with pytest.raises(ModelError, match=r"cannot be read as a model's config\.json"):
        read_config_file(find_config("embedded:nothing", download=False))
    assert Path(find_config("embedded:math", download=False)).is_file()


def test_a_multimodal_models_text_model_is_counted_and_says_itself_if_its_head_is_tied(tmp_path):
    text = {"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 2}
    for tied in (True, False):
        content = {"model_type": "gemma3", "text_config": text, "tie_word_embeddings": tied}
        (tmp_path / "config.json").write_text(json.dumps(content))
        config = read_config_file(tmp_path / "config.json")
        assert (config.model_type, config.tie_word_embeddings) == ("gemma3_text", tied)


@pytest.mark.parametrize("tied", [True, False])
def test_a_gguf_header_gives_the_number_of_parameters(tmp_path, tied):
    """Two heads of 16, one for keys and values; one layer with an MLP of 64."""
    gguf = pytest.importorskip("gguf")
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list([f"token {number}" for number in range(16)])
    writer.add_token_types([1] * 16)
    for name in ("token_embd", "output_norm", *([] if tied else ["output"])):
        writer.add_tensor(f"{name}.weight", np.zeros((16, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    # Queries and output 2 x 32 x 32, keys and values 2 x 32 x 16, MLP 3 x 32 x 64, two norms of 32.
    layer, embeddings = 2048 + 1024 + 6144 + 64, (1 if tied else 2) * 16 * 32
    shape = shape_of(read_config(str(file)), str(file))
    assert (shape.head_dim, shape.kv_heads, shape.vocab) == (16, 1, 16)
    assert shape.parameters == layer + embeddings + 32
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ModelError, match="cannot read the model's config"):
        read_config(str(file))
