"""Weights in shared memory: one folder a run, and none outlives the run that made it for long."""

import os

from ajet.cluster import weights_place as place
from ajet.core.weight_sync import folder


def test_a_run_has_a_place_of_its_own_and_gives_it_back(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "SHARED_MEMORY", tmp_path)
    one = place.weights_place(tmp_path / "run one", in_memory=True)
    other = place.weights_place(tmp_path / "run two", in_memory=True)
    assert one != other and one.parent == tmp_path
    (one / "v00000001").mkdir()
    place.give_back(one)
    assert not one.exists() and other.exists()
    place.give_back(other)


def test_what_a_killed_run_left_is_removed_and_what_a_living_one_has_is_not(tmp_path):
    living = tmp_path / f"{place.PREFIX}{os.getuid()}-living"
    killed = tmp_path / f"{place.PREFIX}{os.getuid()}-killed"
    for root in (living, killed):
        root.mkdir()
        (root / place.OWNER).touch()
    import fcntl

    with (living / place.OWNER).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert place.remove_abandoned(tmp_path) == [killed]
    assert living.exists() and not killed.exists()


def test_several_machines_find_the_weights_in_the_runs_own_folder(tmp_path):
    root = place.weights_place(tmp_path / "run", in_memory=False)
    assert root == tmp_path / "run" / "weights"
    place.give_back(root)
