"""A GGUF file's header says the sizes of its model."""

import struct

import numpy as np
import pytest

from ajet.cluster.gguf_header import GgufHeader
from ajet.cluster.model_shape import model_shape
from ajet.core.errors import ModelError

gguf = pytest.importorskip("gguf")
WIDTH, VOCAB = 32, 16


def write_model(path, *, tied=True, family="llama"):
    """Two heads of 16, one for keys and values; one layer with an MLP of 64. The weights are of no
    use."""
    writer = gguf.GGUFWriter(path, family)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list([f"token {number}" for number in range(VOCAB)])
    writer.add_token_types([1] * VOCAB)
    names = ["token_embd", "output_norm", *([] if tied else ["output"])]
    for name in names:
        writer.add_tensor(f"{name}.weight", np.zeros((VOCAB, WIDTH), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_header_gives_the_number_of_parameters(tmp_path):
    # Queries and output 2 x 32 x 32, keys and values 2 x 32 x 16, MLP 3 x 32 x 64, two norms of 32.
    layer = 2048 + 1024 + 6144 + 64
    for tied, embeddings in ((True, 16 * 32), (False, 2 * 16 * 32)):
        shape = model_shape(str(write_model(tmp_path / f"{tied}.gguf", tied=tied)))
        assert (shape.head_dim, shape.kv_heads, shape.vocab, shape.tied) == (16, 1, 16, tied)
        assert shape.parameters == layer + embeddings + 32


def test_a_family_whose_sizes_mean_something_else_is_refused(tmp_path):
    with pytest.raises(ModelError, match="model_type 'mamba'"):
        model_shape(str(write_model(tmp_path / "other.gguf", family="mamba")))


def test_a_file_that_is_no_gguf_or_is_cut_is_told(tmp_path):
    whole = write_model(tmp_path / "whole.gguf").read_bytes()
    big_endian = b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
    for content in (b"", b"GGML" + whole[4:], big_endian, whole[:200]):
        (tmp_path / "broken.gguf").write_bytes(content)
        with pytest.raises(ModelError, match="its GGUF header cannot be read"):
            GgufHeader.of(tmp_path / "broken.gguf")
    endless = bytearray(whole)
    endless[24:32] = struct.pack("<Q", 1 << 62)  # the length of the first key
    (tmp_path / "broken.gguf").write_bytes(endless)
    with pytest.raises(ModelError, match="a text of"):
        GgufHeader.of(tmp_path / "broken.gguf")
