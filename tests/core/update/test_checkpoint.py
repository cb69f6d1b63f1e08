import hashlib
import json
import multiprocessing
import os
import pickle
import random
import re
import resource
import subprocess
import time

import pytest
import torch
from loguru import logger
from update_fixtures import load_newest, save_checkpoint

from ajet.core.checkpoint.checkpoint import (
    read_checkpoint,
    read_state,
    read_weights,
)
from ajet.core.checkpoint.manifest import candidates, find_fault
from ajet.core.errors import CheckpointError
from tests.forged_manifest import forge_manifest

# A forked child starts in milliseconds; it writes small tensors, so torch's threads are not needed.
FORK = multiprocessing.get_context("fork")


def tensors_of(step, size=64):
    return {
        "model.a.weight": torch.full((size,), float(step)),
        "optimizer.a.weight.exp_avg": torch.arange(size) + step,
        "narrow": torch.ones(3, dtype=torch.bfloat16),
    }


def save(folder, step, **options):
    return save_checkpoint(folder, step, tensors_of(step), {"step": step, "seed": 2**62}, **options)


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_what_is_saved_is_loaded(tmp_path):
    path = save(tmp_path, 7, files={"config.json": b"{}"})
    found = load_newest(tmp_path)
    assert (found.path, found.step) == (path, 7)
    assert found.state == {"step": 7, "seed": 2**62}
    assert found.tensors.keys() == tensors_of(7).keys()
    for name, tensor in tensors_of(7).items():
        assert torch.equal(found.tensors[name], tensor)
        assert found.tensors[name].dtype == tensor.dtype
    assert names(path) == [
        "config.json",
        "manifest.json",
        "model.safetensors",
        "state.json",
        "tensors.safetensors",
    ]


def test_weights_have_the_models_own_names_in_their_file(tmp_path):
    from safetensors.torch import load_file

    assert list(load_file(save(tmp_path, 1) / "model.safetensors")) == ["a.weight"]


def test_with_its_config_a_checkpoint_is_a_model_folder(tmp_path):
    from update_fixtures import tiny_model

    from ajet.core.update.policy import Policy
    from ajet.core.update.settings import UpdateSettings

    model = tiny_model()
    tensors, state = Policy(model, UpdateSettings()).state_dict()
    config = model.config.to_json_string(use_diff=False).encode()
    path = save_checkpoint(tmp_path, 1, tensors, state, files={"config.json": config})
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(type(model).from_pretrained(path)(ids).logits, model(ids).logits)


def test_no_checkpoint_yet_is_none(tmp_path):
    assert load_newest(tmp_path) is None
    assert load_newest(tmp_path / "absent") is None


def test_the_newest_two_are_kept_even_if_one_is_asked(tmp_path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep=1)
    assert names(tmp_path) == ["step_000003", "step_000004"]


def flip(path, name):
    data = bytearray((path / name).read_bytes())
    data[len(data) // 2] ^= 1
    (path / name).write_bytes(data)


def cut(path, name):
    data = (path / name).read_bytes()
    (path / name).write_bytes(data[: len(data) // 2])


def remove(path, name):
    (path / name).unlink()


@pytest.mark.parametrize("damage", [flip, cut, remove])
@pytest.mark.parametrize(
    "name", ["model.safetensors", "tensors.safetensors", "state.json", "manifest.json"]
)
def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path, damage, name):
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    damage(newest, name)
    lines = []
    sink = logger.add(lines.append, format="{message}")
    assert load_newest(tmp_path).step == 1
    logger.remove(sink)
    assert len(lines) == 1 and "step_000002" in lines[0]


class MakesFolder:
    """Unpickled, it makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("name", ["model.safetensors", "tensors.safetensors", "state.json"])
def test_a_pickle_in_a_checkpoint_is_never_run(tmp_path, name):
    folder, made = tmp_path / "checkpoints", tmp_path / "made"
    save(folder, 1)
    newest = save(folder, 2)
    (newest / name).write_bytes(pickle.dumps({"model.a.weight": MakesFolder(made)}))
    assert load_newest(folder).step == 1
    forge_manifest(newest)
    assert find_fault(newest) is None
    with pytest.raises(CheckpointError, match="step_000002 cannot be used: "):
        load_newest(folder)
    assert not made.exists()


def with_header(change):
    """A change of a safetensors file whose header alone is another."""

    def changed(content):
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        change(header[min(name for name in header if name != "__metadata__")])
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + content[8 + length :]

    return changed


DEEP = b"[" * 20_000 + b"]" * 20_000
LIES = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "ten bytes short": lambda content: content[:-10],
    "garbage": lambda content: b"\xff" * 1000,
    "deep": lambda content: DEEP,
    "a huge header": lambda content: (2**62).to_bytes(8, "little") + content[8:],
    "another shape": with_header(lambda tensor: tensor.update(shape=[10**12])),
    "no type": with_header(lambda tensor: tensor.update(dtype="F7")),
    "other bytes": with_header(lambda tensor: tensor.update(data_offsets=[0, 10**15])),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("name", ["model.safetensors", "tensors.safetensors"])
def test_tensors_that_lie_under_a_forged_manifest_are_one_line(tmp_path, name, lie):
    path = save(tmp_path, 1)
    (path / name).write_bytes(LIES[lie]((path / name).read_bytes()))
    forge_manifest(path)
    assert find_fault(path) is None
    said = rf"checkpoint {path} cannot be used: [^\n]+; move it away to resume from an earlier one"
    with pytest.raises(CheckpointError) as caught:
        load_newest(tmp_path)
    assert re.fullmatch(said, str(caught.value))
    if name == "model.safetensors":
        with pytest.raises(CheckpointError) as caught:
            read_weights(path)
        assert re.fullmatch(said, str(caught.value))


@pytest.mark.parametrize("content", [b"", b"[]", b"5", b"\xff\xfe", DEEP, b'{"a": '])
def test_a_state_that_is_no_object_is_one_line(tmp_path, content):
    path = save(tmp_path, 1)
    (path / "state.json").write_bytes(content)
    forge_manifest(path)
    for read in (read_state, read_checkpoint):
        with pytest.raises(CheckpointError, match=f"{path} cannot be used: ") as caught:
            read(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"[]", b"5", b"{}", DEEP, b'{"files": 5}'])
def test_a_manifest_of_another_shape_is_passed_over(tmp_path, content):
    save(tmp_path, 1)
    (save(tmp_path, 2) / "manifest.json").write_bytes(content)
    assert load_newest(tmp_path).step == 1


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path):
    file = save(tmp_path, 1) / "model.safetensors"
    file.unlink()
    file.mkdir()  # what root may not read either
    assert find_fault(file.parent) == "model.safetensors cannot be read: Is a directory"


def test_files_of_a_manifest_that_is_no_object_are_a_fault(tmp_path):
    path = save(tmp_path, 1)
    manifest = json.loads((path / "manifest.json").read_bytes()) | {"files": [1]}
    del manifest["digest"]
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest | {"digest": digest}))
    assert "manifest.json is unreadable" in find_fault(path)


def test_every_bit_of_the_manifest_matters(tmp_path):
    path = save(tmp_path, 3)
    whole = (path / "manifest.json").read_bytes()
    meaning = json.loads(whole)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        (path / "manifest.json").write_bytes(damaged)
        fault = find_fault(path)
        if fault is None:  # white space may turn into other white space
            assert json.loads(bytes(damaged)) == meaning


def test_a_folder_renamed_to_another_step_is_not_that_step(tmp_path):
    save(tmp_path, 3).rename(tmp_path / "step_000009")
    with pytest.raises(CheckpointError, match="of step 3"):
        load_newest(tmp_path)


def test_none_usable_though_some_exist_is_an_error_not_a_fresh_start(tmp_path):
    for step in (1, 2):
        cut(save(tmp_path, step), "model.safetensors")
    with pytest.raises(CheckpointError, match=r"step_000002.*step_000001") as caught:
        load_newest(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_step_run_again_after_damage_replaces_its_folder(tmp_path):
    save(tmp_path, 1)
    flip(save(tmp_path, 2), "model.safetensors")
    save(tmp_path, 2)
    assert names(tmp_path) == ["step_000001", "step_000002"]
    assert all(find_fault(each) is None for each in candidates(tmp_path))


def test_damaged_later_steps_go_and_whole_ones_stay(tmp_path):
    for step in (1, 2):
        save(tmp_path, step)
    save(tmp_path, 9).rename(tmp_path / "aside")
    cut(save(tmp_path, 8), "state.json")
    (tmp_path / "aside").rename(tmp_path / "step_000009")
    save(tmp_path, 3)
    assert names(tmp_path) == ["step_000002", "step_000003", "step_000009"]


def test_killed_while_replacing_a_step_the_old_one_still_loads(tmp_path):
    save(tmp_path, 5).rename(tmp_path / ".replaced_step_000005")
    assert load_newest(tmp_path).step == 5
    save(tmp_path, 6)
    assert names(tmp_path) == ["step_000006"]


def test_what_a_killed_save_left_is_removed_at_the_next(tmp_path):
    save(tmp_path, 1)
    (tmp_path / ".writing_step_000002").mkdir()
    (tmp_path / ".writing_step_000002" / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".discarded_step_000000").mkdir()
    assert load_newest(tmp_path).step == 1
    save(tmp_path, 2)
    assert names(tmp_path) == ["step_000001", "step_000002"]


def test_a_state_that_is_not_json_leaves_nothing_behind(tmp_path):
    with pytest.raises((TypeError, ValueError)):
        save_checkpoint(tmp_path, 1, tensors_of(1), {"reward": float("nan")})
    assert load_newest(tmp_path) is None


def save_with_small_files(folder, answer):
    torch.set_num_threads(1)  # the others are not in a forked child: it would wait for them
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        save_checkpoint(folder, 2, tensors_of(2, size=1_000_000), {})
    except CheckpointError as error:
        answer.send(str(error))


def test_a_file_that_cannot_grow_is_one_line_and_loses_nothing(tmp_path):
    save(tmp_path, 1)
    receive, send = FORK.Pipe(duplex=False)
    child = FORK.Process(target=save_with_small_files, args=(tmp_path, send))
    child.start()
    child.join()
    message = receive.recv()
    assert "step_000002 was not saved" in message and "\n" not in message
    assert names(tmp_path) == ["step_000001"]
    assert load_newest(tmp_path).step == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=False
    )
    if mounted.returncode:
        pytest.skip("this root may not mount")
    try:
        save(small, 1)
        with pytest.raises(CheckpointError, match="No space left") as caught:
            save_checkpoint(small, 2, tensors_of(2, size=1_000_000), {})
        assert "\n" not in str(caught.value)
        assert names(small) == ["step_000001"]
        assert load_newest(small).step == 1
    finally:
        subprocess.run(["umount", str(small)], check=True)


def save_for_ever(folder, first, saved):
    torch.set_num_threads(1)
    for step in range(first, 1_000_000):
        save_checkpoint(folder, step, tensors_of(step, size=20_000), {"step": step})
        saved.value = step


def test_killed_at_any_moment_of_saving_a_whole_checkpoint_loads(tmp_path):
    dice = random.Random(0)
    saved = FORK.Value("l", 0)
    for _ in range(20):
        first = saved.value + 1
        child = FORK.Process(target=save_for_ever, args=(tmp_path, first, saved))
        child.start()
        while saved.value < first and child.is_alive():
            time.sleep(0.001)
        time.sleep(dice.uniform(0.0, 0.02))  # a save takes 3 to 10 ms
        child.kill()
        child.join()
        assert all(find_fault(each) is None for each in candidates(tmp_path))
        found = load_newest(tmp_path)
        assert found.step >= saved.value >= first
        for name, tensor in tensors_of(found.step, size=20_000).items():
            assert torch.equal(found.tensors[name], tensor)


def test_every_file_is_on_the_disk_before_the_checkpoint_has_its_name(tmp_path, monkeypatch):
    flushed, fsync = {}, os.fsync

    def watched(descriptor):
        fsync(descriptor)
        flushed[os.fstat(descriptor).st_ino] = sorted(p.name for p in tmp_path.glob("step_*"))

    monkeypatch.setattr(os, "fsync", watched)  # the system's call: a power cut cannot be tested
    path = save(tmp_path, 1, files={"config.json": b"{}", "more/a.txt": b"a"})
    inside = [path, *path.rglob("*")]
    assert len(inside) == 8  # five files and one in a folder, with both folders
    assert [each.name for each in inside if flushed.get(each.stat().st_ino) != []] == []
    assert flushed[tmp_path.stat().st_ino] == ["step_000001"]  # the name itself, last
