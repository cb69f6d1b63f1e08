"""Weights in shared memory: one folder a run, and none outlives the run that made it for long."""

import os
import stat

import pytest

from ajet.cluster import weight_store
from ajet.cluster.placement import Node, Placement, Process
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.weight_sync import folder


def test_a_run_has_a_place_of_its_own_and_gives_it_back(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "SHARED_MEMORY", tmp_path)
    one = weight_store.make_weight_store(tmp_path / "run one", in_memory=True)
    other = weight_store.make_weight_store(tmp_path / "run two", in_memory=True)
    assert one != other and one.parent == tmp_path
    (one / "v00000001").mkdir()
    weight_store.remove_weight_store(one)
    assert not one.exists() and other.exists()
    weight_store.remove_weight_store(other)


def test_weights_in_shared_memory_are_this_users_alone_and_in_a_new_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "SHARED_MEMORY", tmp_path)
    first = weight_store.make_weight_store(tmp_path / "run", in_memory=True)
    again = weight_store.make_weight_store(tmp_path / "run", in_memory=True)
    assert first != again  # no name can be made by somebody else before
    assert stat.S_IMODE(again.stat().st_mode) == 0o700
    for root in (first, again):
        weight_store.remove_weight_store(root)


def test_a_link_or_a_folder_of_another_user_is_not_removed(tmp_path):
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / weight_store.OWNER).touch()
    (tmp_path / f"{weight_store.PREFIX}{os.getuid()}-link").symlink_to(linked)
    foreign = tmp_path / f"{weight_store.PREFIX}{os.getuid()}-foreign"
    if os.getuid() == 0:
        foreign.mkdir()
        (foreign / weight_store.OWNER).touch()
        os.chown(foreign, 12345, 12345)
    assert weight_store.remove_abandoned(tmp_path) == []
    assert (linked / weight_store.OWNER).exists()


def test_weights_of_a_killed_run_are_removed_and_those_of_a_living_one_stay(tmp_path):
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


def method(tmp_path, *overrides, nodes=(HERE,), backbone="trinity", ranks=(), engines=()):
    """`ranks` and `engines` are the GPUs of each on the first node."""
    (tmp_path / "run.yaml").write_text("ajet: {model: {path: m}}\n")
    config = load_config(tmp_path / "run.yaml", overrides, backbone=backbone)
    return weight_store.sync_method(config, placed(nodes, ranks, engines))


def placed(nodes, ranks, engines):
    trainer, engine = (
        tuple(Process(role, number, 0, gpus) for number, gpus in enumerate(each))
        for role, each in (("trainer", ranks), ("engine", engines))
    )
    return Placement(tuple(nodes), trainer, engine, ())


def test_weights_travel_as_the_config_says(tmp_path):
    for asked in ("nccl", "checkpoint", "memory"):
        key = f"trinity.synchronizer.sync_method={asked}"
        assert method(tmp_path, key) == (asked, None)
    assert method(tmp_path, backbone="verl") == ("memory", None)
    assert method(tmp_path, nodes=(HERE, THERE), backbone="verl") == ("nccl", None)
    assert method(tmp_path, COLOCATE, nodes=(HERE, THERE)) == ("nccl", None)


@pytest.mark.parametrize(
    ("override", "found", "reason"),
    [
        ("trinity.mode=colocate", "memory", "trainer and engines share devices"),
        ("trinity.mode=train", "checkpoint", "two commands share files"),
    ],
)
def test_an_engine_that_cannot_receive_a_broadcast_gets_files_and_a_log_line_says_so(
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


VERL, COLOCATE = "verl.rollout.sync_method", "trinity.mode=colocate"
TWO = {"ranks": [(0,), (1,)], "engines": [(1,), (0,)]}


def test_engines_on_the_ranks_gpus_get_handles_of_memory(tmp_path):
    assert method(tmp_path, backbone="verl", **TWO) == ("ipc", None)
    nodes = (HERE, THERE)  # each rank hands over on its own machine
    assert method(tmp_path, backbone="verl", nodes=nodes, **TWO) == ("ipc", None)
    found, notice = method(tmp_path, COLOCATE, **TWO)
    assert found == "ipc" and notice is not None
    assert notice.endswith("trainer and engines share devices, weights travel as ipc")
    assert weight_store.ranks_beside(placed([HERE], **TWO)) == {"engine 0": (1,), "engine 1": (0,)}


def test_an_engine_of_several_gpus_gets_handles_from_the_ranks_on_all_of_them(tmp_path):
    wide = {"ranks": [(1,), (0,), (2,), (3,)], "engines": [(0, 1), (2, 3)]}
    assert method(tmp_path, backbone="verl", **wide) == ("ipc", None)
    found = weight_store.ranks_beside(placed([HERE], **wide))
    assert found == {"engine 0": (1, 0), "engine 1": (2, 3)}


def test_a_way_can_be_forced(tmp_path):
    for forced in ("ipc", "memory", "checkpoint"):
        assert method(tmp_path, f"{VERL}={forced}", backbone="verl", **TWO) == (forced, None)
    on_cpu = {"ranks": [(), ()], "engines": [()]}
    assert method(tmp_path, backbone="verl", **on_cpu) == ("memory", None)
    assert method(tmp_path, f"{VERL}=ipc", backbone="verl", **on_cpu) == ("ipc", None)
    forced = "trinity.synchronizer.sync_method=ipc"
    assert method(tmp_path, forced, COLOCATE, **TWO) == ("ipc", None)


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        (
            {"ranks": [(0,), (1,)], "engines": [(1, 2)]},
            "some engine has a GPU without a trainer rank",
        ),
        (
            {"ranks": [(0,)], "engines": [(0,), (1,)]},
            "some engine has a GPU without a trainer rank",
        ),
    ],
)
def test_engines_that_cannot_take_handles_get_files_or_a_line_if_it_was_forced(
    tmp_path, gpus, reason
):
    assert method(tmp_path, backbone="verl", **gpus) == ("memory", None)
    with pytest.raises(ConfigError, match=rf"^verl\.rollout\.sync_method=ipc: {reason}"):
        method(tmp_path, f"{VERL}=ipc", backbone="verl", **gpus)


def test_handles_are_refused_where_trainer_and_engines_have_gpus_of_their_own(tmp_path):
    with pytest.raises(ConfigError, match=r"sync_method=ipc: trinity\.mode is not colocate"):
        method(tmp_path, "trinity.synchronizer.sync_method=ipc", ranks=[(0,)], engines=[(1,)])


def test_engines_with_a_gpu_of_their_own_on_two_machines_get_files_of_the_run_folder(tmp_path):
    wide = {"ranks": [(0,), (1,)], "engines": [(1, 2)]}
    found = method(tmp_path, backbone="verl", nodes=(HERE, THERE), **wide)
    assert found == ("checkpoint", None)


def test_shared_memory_is_refused_where_it_is_not_shared(tmp_path):
    with pytest.raises(ConfigError, match="share no memory; set auto"):
        method(tmp_path, f"{VERL}=memory", backbone="verl", nodes=(HERE, THERE), **TWO)
