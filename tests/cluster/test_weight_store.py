"""Weights in shared memory: one folder a run, and none outlives the run that made it for long."""

import os

import pytest

from ajet.cluster import weight_store
from ajet.cluster.placement import Node, Placement
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.weight_sync import folder
from ajet.servers.serving import engine_name


def test_a_run_has_a_place_of_its_own_and_gives_it_back(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "SHARED_MEMORY", tmp_path)
    one = weight_store.make_weight_store(tmp_path / "run one", in_memory=True)
    other = weight_store.make_weight_store(tmp_path / "run two", in_memory=True)
    assert one != other and one.parent == tmp_path
    (one / "v00000001").mkdir()
    weight_store.remove_weight_store(one)
    assert not one.exists() and other.exists()
    weight_store.remove_weight_store(other)


def test_what_a_killed_run_left_is_removed_and_what_a_living_one_has_is_not(tmp_path):
    living = tmp_path / f"{weight_store.PREFIX}{os.getuid()}-living"
    killed = tmp_path / f"{weight_store.PREFIX}{os.getuid()}-killed"
    for root in (living, killed):
        root.mkdir()
        (root / weight_store.OWNER).touch()
    import fcntl

    with (living / weight_store.OWNER).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert weight_store.remove_abandoned(tmp_path) == [killed]
    assert living.exists() and not killed.exists()


def test_several_machines_find_the_weights_in_the_runs_own_folder(tmp_path):
    root = weight_store.make_weight_store(tmp_path / "run", in_memory=False)
    assert root == tmp_path / "run" / "weights"
    weight_store.remove_weight_store(root)


HERE, THERE = Node("here", 2.0, 0), Node("there", 2.0, 0)


def method(tmp_path, *overrides, nodes=(HERE,), backbone="trinity"):
    (tmp_path / "run.yaml").write_text("ajet: {model: {path: m}}\n")
    config = load_config(tmp_path / "run.yaml", overrides, backbone=backbone)
    return weight_store.sync_method(
        config, Placement(tuple(nodes), (), (), ()), engine_name(config, on_gpu=False)
    )


def test_weights_travel_as_the_config_says(tmp_path):
    for asked in ("nccl", "checkpoint", "memory"):
        key = f"trinity.synchronizer.sync_method={asked}"
        assert method(tmp_path, key) == (asked, None)
    assert method(tmp_path, backbone="verl") == ("memory", None)
    assert method(tmp_path, nodes=(HERE, THERE), backbone="verl") == ("checkpoint", None)


@pytest.mark.parametrize(
    ("override", "found", "reason"),
    [
        ("ajet.rollout.name=sglang", "memory", "a sglang server takes no broadcast"),
        ("trinity.mode=colocate", "memory", "trainer and engines share devices"),
        ("trinity.mode=train", "checkpoint", "two commands share files"),
    ],
)
def test_who_cannot_take_a_broadcast_gets_files_and_a_line_says_so(
    tmp_path, override, found, reason
):
    way, notice = method(tmp_path, override)
    assert way == found
    assert notice == (f"trinity.synchronizer.sync_method=nccl: {reason}, weights travel as {found}")


@pytest.mark.parametrize(
    ("backbone", "overrides"),
    [("verl", ()), ("trinity", ("trinity.synchronizer.sync_method=memory",))],
)
def test_memory_is_not_chosen_on_a_node_that_is_not_the_drivers(tmp_path, backbone, overrides):
    node = Node("10.0.0.2", 2.0, 0, is_remote=True)
    way, notice = method(tmp_path, *overrides, nodes=(node,), backbone=backbone)
    assert way == "checkpoint"
    assert notice == (
        "the run's processes are on 10.0.0.2, ajet is on another node: they share no memory, "
        "weights travel as checkpoint"
    )


def test_memory_of_two_machines_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="share no memory on 2 nodes; set checkpoint or nccl"):
        method(tmp_path, "trinity.synchronizer.sync_method=memory", nodes=(HERE, THERE))
