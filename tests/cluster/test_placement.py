"""Placement: no GPU twice for one role, every process placed, engines within a node."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.cluster.placement import Node, ResourceRequest, configured_nodes, place_processes
from ajet.cluster.placement_groups import bundles
from ajet.core.config import load_config
from ajet.core.errors import ConfigError

pytest.importorskip("ray")
from ajet.cluster.run_attempts import make_placement

VERL, TRINITY = ResourceRequest(colocated=True), ResourceRequest(colocated=False)


def nodes(*gpus, cpus=32.0):
    return [Node(f"node {place}", cpus, count) for place, count in enumerate(gpus)]


def where(processes):
    return [(each.bundle, *each.gpus) for each in processes]


def test_colocated_engines_and_ranks_share_every_gpu():
    placed = place_processes(VERL, nodes(2))
    assert where(placed.trainer) == where(placed.engines) == [(0, 0), (0, 1)]
    assert placed.shares_gpus and placed.on_gpus
    assert placed.rows() == [
        ("node 0", "GPU 0", "trainer 0, engine 0"),
        ("node 0", "GPU 1", "trainer 1, engine 1"),
        ("node 0", "CPU", "worker 0 to 7"),
    ]


def test_a_colocated_engine_of_two_gpus_spans_two_ranks():
    placed = place_processes(replace(VERL, tensor_parallel=2, nnodes=2), nodes(4, 4))
    assert where(placed.engines) == [(0, 0, 1), (0, 2, 3), (1, 0, 1), (1, 2, 3)]
    assert len(placed.trainer) == 8


def test_disaggregated_engines_have_the_last_gpus_and_the_trainer_the_rest():
    placed = place_processes(replace(TRINITY, n_engines=2), nodes(4))
    assert where(placed.trainer) == [(0, 0), (0, 1)]
    assert sorted(where(placed.engines)) == [(0, 2), (0, 3)]
    assert not placed.shares_gpus


def test_ranks_with_gpus_share_the_cpus_of_their_node():
    few, many = nodes(1, cpus=30.0), nodes(4, cpus=30.0)
    placed = place_processes(replace(VERL, nnodes=2), [*few, replace(many[0], name="node 1")])
    assert [placed.threads_of(rank) for rank in placed.trainer] == [30, 7, 7, 7, 7]
    crowded = place_processes(VERL, nodes(8, cpus=4.0))
    assert {crowded.threads_of(rank) for rank in crowded.trainer} == {1}


def test_ranks_on_the_cpu_keep_the_threads_that_they_start_with():
    placed = place_processes(replace(VERL, n_trainer_ranks=2), nodes(0))
    assert [placed.threads_of(rank) for rank in placed.trainer] == [None, None]


def test_an_odd_gpu_is_left_to_the_trainer_by_engines_of_two():
    placed = place_processes(replace(TRINITY, n_engines=2, tensor_parallel=2), nodes(5))
    assert where(placed.trainer) == [(0, 0)]
    assert sorted(where(placed.engines)) == [(0, 1, 2), (0, 3, 4)]


def test_device_lists_are_numbered_over_the_nodes():
    needs = replace(TRINITY, nnodes=2, trainer_devices=(0, 1, 2, 3), engine_devices=(4, 5, 7))
    placed = place_processes(needs, nodes(4, 4))
    assert {bundle for bundle, _ in where(placed.trainer)} == {0}
    assert where(placed.engines) == [(1, 0), (1, 1), (1, 3)]


def test_one_list_of_a_disaggregated_run_leaves_the_rest_to_the_other():
    placed = place_processes(replace(TRINITY, engine_devices=(0,)), nodes(3))
    assert where(placed.trainer) == [(0, 1), (0, 2)]
    placed = place_processes(replace(TRINITY, trainer_devices=(0,)), nodes(3))
    assert len(placed.engines) == 2


@pytest.mark.parametrize(
    ("needs", "ranks", "engines"),
    [
        (replace(TRINITY, generates=False, engine_devices=(4, 5, 6, 7)), [0, 1, 2, 3], []),
        (replace(TRINITY, trains=False, trainer_devices=(0, 1, 2, 3)), [], [7, 6, 5, 4]),
        (replace(TRINITY, trains=False, trainer_devices=(0, 1), n_engines=2), [], [7, 6]),
    ],
)
def test_two_commands_have_the_gpus_that_they_would_have_as_one(needs, ranks, engines):
    placed = place_processes(needs, nodes(8))
    assert where(placed.trainer) == [(0, gpu) for gpu in ranks]
    assert where(placed.engines) == [(0, gpu) for gpu in engines]
    both = place_processes(replace(needs, trains=True, generates=True), nodes(8))
    assert placed.trainer in ((), both.trainer)
    assert where(placed.engines) in ([], where(both.engines))


@pytest.mark.parametrize("needs", [TRINITY, replace(TRINITY, colocated=True)])
@pytest.mark.parametrize("gpus", [0, 4])
def test_a_run_that_samples_nothing_has_workers_and_no_engines(needs, gpus):
    placed = place_processes(replace(needs, samples=False), nodes(gpus))
    assert placed.engines == () and placed.workers
    assert [each.gpus for each in placed.trainer] == [(gpu,) for gpu in range(gpus)] or not gpus


@pytest.mark.parametrize("needs", [VERL, TRINITY])
def test_a_run_whose_episodes_clients_run_has_engines_and_no_workers(needs):
    placed = place_processes(replace(needs, clients_run_episodes=True), nodes(2))
    assert placed.workers == () and placed.engines and placed.trainer


def test_two_commands_reserve_the_gpus_that_each_of_them_uses():
    train = place_processes(
        replace(TRINITY, generates=False, trainer_devices=(0, 1, 2, 3)), nodes(8)
    )
    explore = place_processes(replace(TRINITY, trains=False, engine_devices=(4, 6, 7)), nodes(8))
    assert (train.with_renumbered_gpus().gpus_of(0), explore.with_renumbered_gpus().gpus_of(0)) == (
        4,
        3,
    )
    assert where(explore.with_renumbered_gpus().engines) == [(0, 0), (0, 1), (0, 2)]
    assert bundles(explore.with_renumbered_gpus())[0]["GPU"] == 3.0


def test_packed_processes_share_what_they_shared():
    needs = replace(VERL, nnodes=2, tensor_parallel=2, trainer_devices=(2, 3, 6, 7))
    placed = place_processes(needs, nodes(4, 4))
    assert where(placed.with_renumbered_gpus().trainer) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert where(placed.with_renumbered_gpus().engines) == [(0, 0, 1), (1, 0, 1)]
    assert placed.with_renumbered_gpus().workers == placed.workers


@pytest.mark.parametrize(("is_own", "gpus"), [(True, 4), (False, 0)])
def test_a_device_list_names_the_machines_own_gpus_on_a_ray_of_its_own(tmp_path, is_own, gpus):
    (tmp_path / "run.yaml").write_text("ajet:\n  backbone: trinity\n  model: {path: m}\n")
    options = ["trinity.mode=explore", "ajet.rollout.device_mapping=[4,5]"]
    config = load_config(tmp_path / "run.yaml", options)
    found = make_placement(config, nodes(8), is_own=is_own)
    assert where(found.engines)[0] == (0, gpus)


def test_a_node_has_the_names_of_its_processes():
    needs = replace(VERL, nnodes=2, n_trainer_ranks=3, n_engines=2, num_workers=4)
    placed = place_processes(needs, nodes(0, 0))
    first, second = placed.nodes
    assert placed.names_on(first) == "trainer 0 to 1, engine 0, worker 0 to 1"
    assert placed.names_on(second) == "trainer 2, engine 1, worker 2 to 3"
    assert placed.nodes_of(placed.trainer[:1]) == [first]
    assert placed.nodes_of(placed.engines) == [first, second]


def test_the_nodes_with_the_most_gpus_are_taken():
    placed = place_processes(replace(VERL, nnodes=2), nodes(0, 8, 2, 8))
    assert [node.name for node in placed.nodes] == ["node 1", "node 3"]


def test_without_gpus_ranks_and_engines_are_cpu_processes():
    placed = place_processes(VERL, nodes(0, cpus=2))
    assert (len(placed.trainer), len(placed.engines), len(placed.workers)) == (1, 1, 1)
    needs = replace(TRINITY, nnodes=2, n_trainer_ranks=4, n_engines=2, num_workers=3)
    placed = place_processes(needs, nodes(0, 0, cpus=4))
    assert where(placed.trainer) == [(0,), (0,), (1,), (1,)]
    assert where(placed.engines) == [(0,), (1,)]
    assert not placed.on_gpus and len(placed.workers) == 3


def test_processes_share_cores_that_are_too_few():
    placed = place_processes(replace(VERL, num_workers=2), nodes(0, cpus=2))
    assert {each.cpus for each in placed.processes} == {0.5}


def test_more_workers_than_episodes_are_not_made():
    assert len(place_processes(replace(VERL, num_workers=9, max_episodes=2), nodes(0)).workers) == 2


@pytest.mark.parametrize(
    ("needs", "engines", "ranks"),
    [
        (replace(TRINITY, generates=False), 0, 8),
        (replace(TRINITY, trains=False), 8, 0),
        (replace(TRINITY, trains=False, tensor_parallel=4), 2, 0),
    ],
)
def test_a_mode_of_one_side_has_every_gpu(needs, engines, ranks):
    placed = place_processes(needs, nodes(8))
    assert (len(placed.engines), len(placed.trainer)) == (engines, ranks)


@pytest.mark.parametrize(
    ("needs", "gpus", "message"),
    [
        (replace(VERL, nnodes=2), [8], "nnodes=2: the cluster has 1 node; add nodes or lower it"),
        (replace(VERL, n_gpus_per_node=8), [2], "n_gpus_per_node=8: node 0 has 2 GPUs; lower it"),
        (replace(VERL, n_gpus_per_node=1), [0], "n_gpus_per_node=1: node 0 has 0 GPUs"),
        (replace(VERL, tensor_parallel=2), [3], "size=2 does not divide the 3 GPUs of a node"),
        (replace(VERL, n_engines=3), [2], "n_vllm_engine=3 of 1 GPU (ajet.rollout.tensor_model_p"),
        (replace(VERL, n_trainer_ranks=3), [2], "n_trainer_ranks=3: the trainer has 2 GPUs"),
        (replace(VERL, sequence_parallel=3), [4], "size=3 does not divide the 4 trainer ranks"),
        (replace(VERL, trainer_devices=(0, 9)), [8], "names GPU 9: the run has 8 GPUs, numbered"),
        (replace(VERL, engine_devices=(0,)), [0], "names GPUs, and the run's nodes have none"),
        (replace(VERL, tensor_parallel=2), [0], "there is no GPU, and on CPU an engine is one"),
        (TRINITY, [1], "too few GPUs: 1 engine of 1 GPU (ajet.rollout.n_vllm_engine, ajet.rollout."
         "tensor_model_parallel_size) and the trainer need 2, there is 1; with --backbone verl"),
        (replace(TRINITY, n_engines=2, tensor_parallel=4), [8], "trainer need 9, there are 8"),
        (replace(TRINITY, trainer_devices=(0, 1), engine_devices=(1, 2)), [4], "share GPU 1: back"),
        (replace(TRINITY, engine_devices=(0, 1)), [2], "leaves the trainer none: shorten it"),
        (replace(TRINITY, engine_devices=(0, 1), generates=False), [2], "leaves the trainer none"),
        (replace(TRINITY, trainer_devices=(0, 1), trains=False), [2], "leaves the engines none"),
        (replace(VERL, in_process=True, tensor_parallel=2), [2], "size=2: the in-process engine "
         "computes on one GPU; leave it at 1, or set ajet.rollout.name to vllm or sglang"),
        (replace(TRINITY, in_process=True, tensor_parallel=2, trains=False), [2], "in-process eng"),
        (replace(TRINITY, nnodes=2, n_engines=1, tensor_parallel=2), [1, 2], None),
        (replace(TRINITY, nnodes=3, n_engines=1, tensor_parallel=2), [1, 1, 1], "only 0 fit on 3"),
    ],
)  # fmt: skip
def test_a_placement_that_does_not_fit_is_one_line(needs, gpus, message):
    if message is None:
        assert len(place_processes(needs, nodes(*gpus)).engines) == 1
        return
    with pytest.raises(ConfigError) as error:
        place_processes(needs, nodes(*gpus))
    assert message in str(error.value) and "\n" not in str(error.value)


CLUSTERS = st.lists(st.integers(0, 8), min_size=1, max_size=4)
NEEDS = st.builds(
    ResourceRequest,
    colocated=st.booleans(),
    nnodes=st.integers(1, 4),
    trains=st.booleans(),
    generates=st.just(True),
    n_trainer_ranks=st.none() | st.integers(1, 9),
    n_engines=st.none() | st.integers(1, 9),
    tensor_parallel=st.sampled_from([1, 1, 2, 4]),
    trainer_devices=st.none() | st.sets(st.integers(0, 12), min_size=1).map(tuple),
    engine_devices=st.none() | st.sets(st.integers(0, 12), min_size=1).map(tuple),
    num_workers=st.none() | st.integers(1, 5),
)


@settings(max_examples=300)
@given(needs=NEEDS, gpus=CLUSTERS)
def test_whatever_is_placed_keeps_the_rules(needs, gpus):
    try:
        placed = place_processes(needs, nodes(*gpus, cpus=4.0))
    except ConfigError:
        return
    for processes in (placed.trainer, placed.engines):
        used = [(each.bundle, gpu) for each in processes for gpu in each.gpus]
        assert len(used) == len(set(used)), "no GPU twice in a role"
        assert all(gpu < placed.nodes[bundle].gpus for bundle, gpu in used)
        assert [each.index for each in processes] == list(range(len(processes)))
    assert not (placed.shares_gpus and not needs.colocated)
    for engine in placed.engines if placed.on_gpus else ():
        assert len(engine.gpus) == needs.tensor_parallel, "tensor parallel within a node"
    assert needs.trains == bool(placed.trainer) and bool(placed.engines)
    if needs.n_engines:
        assert len(placed.engines) == needs.n_engines
    if needs.trains and needs.n_trainer_ranks:
        assert len(placed.trainer) == needs.n_trainer_ranks
    for bundle, node in enumerate(placed.nodes):
        here = sum(each.cpus for each in placed.processes if each.bundle == bundle)
        assert here <= node.cpus + 1e-6


def test_a_config_says_what_it_needs(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("ajet:\n  backbone: trinity\n  model: {path: m}\n")
    options = ["ajet.trainer_common.nnodes=2", "ajet.rollout.n_vllm_engine=3"]
    config = load_config(path, [*options, "ajet.trainer_common.device_mapping='list(range(0,4))'"])
    needs = ResourceRequest.from_config(config)
    assert (needs.colocated, needs.n_engines, needs.trainer_devices) == (False, 3, [0, 1, 2, 3])
    here = Node("here", cpus=8, gpus=1)
    assert configured_nodes(config.ajet.trainer_common, here) == nodes(1, 1, cpus=8)
    assert configured_nodes(config.ajet.trainer_common, here, nnodes=1, gpus=4) == nodes(4, cpus=32)
    assert ResourceRequest.from_config(load_config(path, ["trinity.mode=colocate"])).colocated
    assert ResourceRequest.from_config(load_config(path, ["ajet.backbone=verl"])).colocated
    assert ResourceRequest.from_config(
        load_config(path, ["ajet.rollout.name=in_process"])
    ).in_process
    assert not ResourceRequest.from_config(load_config(path, ["trinity.mode=explore"])).trains


def test_a_model_that_is_on_the_cpu_leaves_the_gpus_to_others(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("ajet:\n  backbone: verl\n  model: {path: m, device: cpu}\n")
    assert not place_processes(ResourceRequest.from_config(load_config(path)), nodes(8)).on_gpus
    asked = load_config(path, ["ajet.trainer_common.n_gpus_per_node=2"])
    assert place_processes(ResourceRequest.from_config(asked), nodes(8)).on_gpus
