"""Weights through a folder: what arrives is what was sent, or nothing changes."""

import json
import os
import resource
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ajet.core.weight_sync.checksum import tensor_checksum
from ajet.core.weight_sync.folder import FolderSource, WeightFolder, shared_memory_root
from ajet.core.weight_sync.load import load_tensors, load_weights
from ajet.core.weight_sync.manifest import WeightsError


def _tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "a.weight": torch.randn(5, 3, generator=generator),
        "b.bias": torch.randn(7, generator=generator).bfloat16(),
        "c.scale": torch.tensor(2.5 + seed),
        "d.empty": torch.zeros(0, 4),
    }


def _zeros():
    return {name: torch.zeros_like(tensor) for name, tensor in _tensors().items()}


def _tied_model(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Embedding(11, 4), torch.nn.Linear(4, 11, bias=False))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize("shard_bytes", [1, 64, 1 << 20])
def test_weights_arrive_unchanged(tmp_path, shard_bytes):
    folder = WeightFolder(tmp_path, shard_bytes=shard_bytes)
    source, targets = folder.write(7, _tensors().items()), _zeros()
    report = load_tensors(targets, source)
    for name, tensor in _tensors().items():
        assert torch.equal(targets[name], tensor)
    assert (report.version, report.num_bytes) == (7, 5 * 3 * 4 + 7 * 2 + 4)
    assert report.checksum == source.manifest().checksum
    assert report.seconds > 0


def test_a_hugging_face_reader_finds_every_tensor(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    folder = WeightFolder(tmp_path / "w", extra_files=[tmp_path / "config.json"], shard_bytes=1)
    source = folder.write(1, _tensors().items())
    where = json.loads((source.path / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(where) == set(_tensors()) and len(set(where.values())) == 4
    for name, shard in where.items():
        assert torch.equal(load_file(source.path / shard)[name], _tensors()[name])
    assert (source.path / "config.json").exists()


def test_tied_weights_are_sent_once_and_a_missing_one_is_named(tmp_path):
    sender, receiver = _tied_model(0), _tied_model(1)
    source = WeightFolder(tmp_path).write(1, sender.named_parameters())
    load_weights(receiver, source)
    assert torch.equal(receiver[1].weight, sender[0].weight)
    untied = torch.nn.Sequential(torch.nn.Embedding(11, 4), torch.nn.Linear(4, 11, bias=False))
    before = untied[0].weight.clone()
    with pytest.raises(WeightsError, match=r"^weights of version 1: missing 1\.weight$"):
        load_weights(untied, source)
    assert torch.equal(untied[0].weight, before)


def test_values_are_cast_to_the_models_own_type(tmp_path):
    source = WeightFolder(tmp_path).write(1, [("w", torch.tensor([1.0, 2.5]).bfloat16())])
    target = {"w": torch.zeros(2)}
    report = load_tensors(target, source)
    assert target["w"].tolist() == [1.0, 2.5] and report.num_bytes == 4


def _damage(path):
    shard = next(path.glob("model-*.safetensors"))
    tensors = load_file(shard)
    flipped = tensors["a.weight"].view(torch.int32)
    flipped[4, 2] ^= 1
    save_file(tensors, shard)


def _cut(path):
    shard = next(path.glob("model-*.safetensors"))
    os.truncate(shard, shard.stat().st_size - 4)


def _forge(path):
    told = json.loads((path / "manifest.json").read_text())
    told["tensors"][0]["checksum"] = "0" * 16
    (path / "manifest.json").write_text(json.dumps(told))


def _halve(name):
    def act(path):
        os.truncate(path / name, (path / name).stat().st_size // 2)

    return act


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_damage, "a.weight is damaged"),
        (_cut, r"model-00001\.safetensors"),
        (_forge, "the manifest is damaged"),
        (lambda path: (path / "manifest.json").unlink(), "is not there"),
        (_halve("manifest.json"), r"manifest\.json is damaged"),
        (_halve("model.safetensors.index.json"), r"index\.json is damaged"),
    ],
    ids=[
        "a flipped bit",
        "a cut file",
        "a forged manifest",
        "no manifest",
        "a cut manifest",
        "a cut index",
    ],
)
def test_damage_is_one_line_and_the_old_weights_stay(tmp_path, spoil, said):
    source, targets = WeightFolder(tmp_path).write(3, _tensors().items()), _tensors(seed=9)
    spoil(source.path)
    with pytest.raises(WeightsError, match=said) as caught:
        load_tensors(targets, source)
    assert "\n" not in str(caught.value) and "version 3" in str(caught.value)
    assert all(torch.equal(targets[n], t) for n, t in _tensors(seed=9).items())


def test_a_misshapen_or_foreign_tensor_is_one_line_and_the_old_weights_stay(tmp_path):
    folder = WeightFolder(tmp_path)
    targets = {"z": torch.ones(2), "w": torch.ones(2, 3)}
    for version, (sent, said) in enumerate(
        [
            (
                {"z": torch.zeros(2), "w": torch.zeros(3, 2)},
                r"w is \[3, 2\], the model's is \[2, 3\]",
            ),
            ({"z": torch.zeros(2), "v": torch.zeros(1)}, "no tensor v"),
            ({"z": torch.zeros(2)}, "missing w"),
        ]
    ):
        with pytest.raises(WeightsError, match=said):
            load_tensors(targets, folder.write(version, sent.items()))
        assert targets["z"].tolist() == [1, 1] and targets["w"].sum() == 6


def test_old_versions_go_when_nobody_reads_them(tmp_path):
    folder = WeightFolder(tmp_path, keep=1)
    first = folder.write(1, _tensors().items())
    with first.read_lock():
        folder.write(2, _tensors().items())
        assert folder.versions() == [1, 2]
    folder.write(3, _tensors().items())
    assert folder.versions() == [3]
    with pytest.raises(WeightsError, match=r"version 1: .* is not there"):
        load_tensors(_zeros(), first)


def test_a_version_that_is_being_removed_is_not_there_any_more(tmp_path, monkeypatch):
    folder = WeightFolder(tmp_path, keep=1)
    first = folder.write(1, _tensors().items())
    tried, remove = [], shutil.rmtree

    def removing(path, **options):
        if "v00000001" in str(path):
            tried.append(path)
            with pytest.raises(WeightsError, match="is not there"):
                load_tensors(_zeros(), first)
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", removing)
    folder.write(2, _tensors().items())
    assert len(tried) == 1 and not tried[0].exists()


def test_files_of_a_killed_writer_are_removed(tmp_path):
    folder = WeightFolder(tmp_path, keep=1)
    folder.write(1, _tensors().items())
    for left in (".v00000001.removed", ".v00000009.4711"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "model-00001.safetensors").touch()
    WeightFolder(tmp_path, keep=1).write(2, _tensors().items())
    assert [path.name for path in tmp_path.iterdir()] == ["v00000002"]


def test_a_version_just_written_stays_though_a_run_before_left_newer_ones(tmp_path):
    folder = WeightFolder(tmp_path, keep=2)
    for version in (7, 8, 3):
        source = folder.write(version, _tensors().items())
    assert folder.versions() == [3, 7, 8]
    load_tensors(_zeros(), source)
    folder.write(4, _tensors().items())
    assert folder.versions() == [4, 7, 8]


def test_a_version_that_was_not_finished_is_not_there(tmp_path):
    folder = WeightFolder(tmp_path)

    def broken():
        yield "a.weight", torch.ones(3)
        raise RuntimeError("the trainer died")

    with pytest.raises(RuntimeError):
        folder.write(1, broken())
    assert folder.versions() == [] and list(tmp_path.iterdir()) == []
    with pytest.raises(WeightsError, match="there are none"):
        folder.write(1, [])


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    folder = WeightFolder(tmp_path / "w")
    (tmp_path / "w").rmdir()
    (tmp_path / "w").write_text("no folder")
    with pytest.raises(WeightsError, match=r"^weights of version 1: .*/w: Not a directory$"):
        folder.write(1, _tensors().items())


def test_a_shard_for_which_there_is_no_room_is_one_line_and_leaves_nothing(tmp_path):
    folder, before = WeightFolder(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, before[1]))
    try:
        with pytest.raises(WeightsError, match=r"^weights of version 1: .* cannot be written: .*$"):
            folder.write(1, [("w", torch.ones(1 << 12))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_shard_is_on_disk_before_the_next_one_is_collected(tmp_path):
    seen = []

    def stream():
        for number in range(8):
            seen.append(len(list(tmp_path.glob(".v*/model-*"))))
            yield f"w{number}", torch.full((1 << 10,), float(number))

    WeightFolder(tmp_path, shard_bytes=2 << 12).write(1, stream())  # two tensors a shard
    assert seen == [0, 0, 0, 1, 1, 2, 2, 3]


def test_shared_memory_is_used_where_there_is_some(tmp_path):
    root = shared_memory_root() / f"ajet-test-{os.getpid()}"
    folder = WeightFolder(root)
    try:
        targets = _zeros()
        load_tensors(targets, FolderSource(folder.write(1, _tensors().items()).path, 1))
        assert torch.equal(targets["a.weight"], _tensors()["a.weight"])
    finally:
        folder.close()
    assert not root.exists()


@given(
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40),
    st.integers(0, 10**6),
    st.integers(0, 31),
)
@settings(max_examples=60)
def test_a_flipped_bit_changes_the_checksum(values, place, bit):
    tensor = torch.tensor(values, dtype=torch.float32)
    before = tensor_checksum(tensor)
    words = tensor.view(torch.int32)
    words[place % len(values)] ^= -(2**31) if bit == 31 else 1 << bit
    assert tensor_checksum(tensor) != before


def test_the_checksum_knows_order_and_length_and_signs():
    values = torch.arange(1.0, 3_000_001.0)
    swapped = values.clone()
    swapped[[0, 2_500_000]] = swapped[[2_500_000, 0]]
    two_signs = values.clone()
    two_signs[[1, 3]] *= -1
    sums = {tensor_checksum(t) for t in (values, swapped, values[:-1], two_signs)}
    assert len(sums) == 4
    assert tensor_checksum(values[1:]) == tensor_checksum(values[1:].clone())
