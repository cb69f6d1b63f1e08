"""Memory and time estimates, against numbers worked out by hand for Qwen2.5 0.5B, 7B and 14B."""

from dataclasses import replace
from pathlib import Path

import pytest

from ajet.cluster.placement import Node, ResourceRequest, place_processes
from ajet.core.config import load_config
from ajet.plan.gpu_plan import ClusterPlan, memory_problems
from ajet.plan.memory import (
    GIB,
    RUNTIME_GIB,
    EngineMemoryInputs,
    TrainerMemoryInputs,
    activation_values,
    cache_tokens,
    engine_memory,
    total,
    trainer_memory,
    trainer_states,
)
from ajet.plan.update_time import GPUS, EpisodeSize
from tests.plan.shapes import qwen_0_5b, qwen_7b, qwen_14b


def gib_of(parts):
    return {part.name: part.gib for part in parts}


def test_states_of_7b_on_eight_ranks_are_two_bytes_of_sixteen():
    parts = gib_of(trainer_memory(qwen_7b(), TrainerMemoryInputs(ranks=8, has_reference=False)))
    assert parts["weights"] == pytest.approx(7_615_616_512 * 4 / 8 / 2**30)  # 3.55
    assert parts["gradients"] == parts["weights"] and parts["optimizer"] == 2 * parts["weights"]
    assert sum(parts[name] for name in ("weights", "gradients", "optimizer")) == pytest.approx(
        14.185, abs=1e-3
    )


def test_states_in_float64_are_twice_those_in_float32(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("ajet:\n  model: {path: m}\n  rollout: {user_workflow: w.py->W}\n")
    on_gpu = ["ajet.trainer_common.fsdp_config.param_offload=false"]
    plain, wide = (
        gib_of(
            trainer_memory(
                qwen_7b(),
                TrainerMemoryInputs.from_config(load_config(path, [*on_gpu, *asked]), ranks=8),
            )
        )
        for asked in ([], ["ajet.model.dtype=float64"])
    )
    for name, times in {"weights": 2, "gradients": 2, "optimizer": 2, "gathered layers": 4}.items():
        assert wide[name] == pytest.approx(times * plain[name])


def test_gathered_layers_of_14b_are_embeddings_and_two_layers_twice():
    # embeddings 2 x 152064 x 5120 = 1,557,135,360; a layer: q and o 52,428,800, k and v 10,485,760,
    # biases 7,168, MLP 212,336,640, norms 10,240; all in bfloat16, and as much for gradients
    layer = 52_428_800 + 10_485_760 + 7_168 + 212_336_640 + 10_240
    assert layer == qwen_14b().layers[0].parameters == 275_268_608
    parts = gib_of(trainer_memory(qwen_14b(), TrainerMemoryInputs(ranks=16)))
    expected = 2 * 2 * (1_557_135_360 + 2 * layer) / 2**30
    assert parts["gathered layers"] == pytest.approx(expected)


def test_weights_that_stay_gathered_are_whole_on_every_rank_with_their_gradients():
    run = TrainerMemoryInputs(ranks=8, keeps_gathered=True)
    assert gib_of(trainer_memory(qwen_7b(), run))["gathered layers"] == pytest.approx(
        (2 + 4) * 7_615_616_512 / GIB
    )
    lora = gib_of(trainer_memory(qwen_7b(), replace(run, lora_rank=8)))["gathered layers"]
    expected = 2 * 7_615_616_512 + 4 * qwen_7b().trained_parameters(8)
    assert lora == pytest.approx(expected / GIB)


def test_activations_of_half_a_billion_by_hand():
    # kept whole, a token of a layer has 4 x 896 + 2 x 896 + 2 x 128 + 4 x 4864 = 25,088 values; its
    # backward pass adds 2 x 896 + 2 x 4864 = 11,520
    shape = qwen_0_5b()
    assert activation_values(shape, 1000, recomputes=False) == 1000 * (24 * 25_088 + 11_520)
    recomputed = 1000 * (24 * 896 + 25_088 + 11_520)
    assert activation_values(shape, 1000, recomputes=True) == recomputed
    run = TrainerMemoryInputs(tokens=2000, sequence_parallel=2)
    assert gib_of(trainer_memory(shape, run))["activations"] == 2 * recomputed / GIB


def test_the_head_has_a_slice_of_logits_and_a_gradient_in_float32():
    gradient = 4 * 151936 * 896
    few = gib_of(trainer_memory(qwen_0_5b(), TrainerMemoryInputs(tokens=10)))
    assert few["head"] == pytest.approx((14 * 10 * 151936 + gradient) / GIB)
    many = gib_of(trainer_memory(qwen_0_5b(), TrainerMemoryInputs(tokens=10_000)))
    assert many["head"] == pytest.approx((14 * 2**27 + gradient) / GIB)  # 2.26
    of_adapters = gib_of(trainer_memory(qwen_0_5b(), TrainerMemoryInputs(tokens=10, lora_rank=4)))
    assert of_adapters["head"] == pytest.approx(14 * 10 * 151936 / GIB)


def test_offload_moves_the_states_to_the_cpu_and_lora_leaves_few():
    run = TrainerMemoryInputs(ranks=4, offload=True, has_reference=False)
    assert "weights" not in gib_of(trainer_memory(qwen_7b(), run))
    assert total(trainer_states(qwen_7b(), run)) == pytest.approx(16 * 7_615_616_512 / 4 / GIB)
    parts = gib_of(trainer_memory(qwen_7b(), TrainerMemoryInputs(lora_rank=8)))
    assert parts["optimizer"] == pytest.approx(8 * qwen_7b().trained_parameters(8) / GIB)
    assert parts["weights"] > 28 and "reference" not in parts


def test_a_reference_and_a_critic_are_counted():
    parts = gib_of(trainer_memory(qwen_7b(), TrainerMemoryInputs(has_critic=True)))
    assert parts["reference"] == pytest.approx(4 * 7_615_616_512 / GIB)
    assert parts["critic"] == 4 * parts["reference"]


def test_the_cache_of_7b_at_six_tenths_of_80_gib_by_hand():
    # 48 GiB - 14.18 of weights - 1.5 of the runtime = 32.3 GiB; a token has 57,344 bytes
    tokens = cache_tokens(qwen_7b(), 80, EngineMemoryInputs(share=0.6))
    assert tokens == int((48 * 2**30 - 2 * 7_615_616_512 - 1.5 * 2**30) / 57_344) == 605_080
    parts = gib_of(engine_memory(qwen_7b(), 80, EngineMemoryInputs(share=0.6)))
    assert sum(parts.values()) == pytest.approx(48) and parts["runtime"] == RUNTIME_GIB


def test_two_gpus_of_an_engine_halve_weights_and_a_tokens_cache():
    one = cache_tokens(qwen_14b(), 80, EngineMemoryInputs(share=0.9))
    two = cache_tokens(qwen_14b(), 80, EngineMemoryInputs(share=0.9, tensor_parallel=2))
    assert one == int((70.5 * 2**30 - 2 * 14_770_033_664) / 196_608)
    assert two == int((70.5 * 2**30 - 14_770_033_664) / 98_304)


def test_more_gpus_than_key_value_heads_hold_the_same_head_twice():
    """0.5B has two: four GPUs have half of a token's 12,288 bytes each, not a quarter."""
    four = cache_tokens(qwen_0_5b(), 80, EngineMemoryInputs(share=0.5, tensor_parallel=4))
    weights = 2 * qwen_0_5b().parameters / 4
    assert four == int((38.5 * 2**30 - weights) / (2 * 2 * 24 * 128 / 2))


def config_of(tmp_path, backbone, *overrides):
    path = tmp_path / "run.yaml"
    path.write_text("ajet:\n  model: {path: m}\n")
    return load_config(path, overrides, backbone=backbone)


OFFLOAD, CHECKPOINTING = (
    f"ajet.trainer_common.fsdp_config.{name}="
    for name in ("param_offload", "activation_checkpointing")
)


UTILIZATION = "verl.rollout.gpu_memory_utilization="


def plan_of(config, shape, gpus=8, gpu="a100"):
    nodes = [Node(f"node {at}", 64, gpus) for at in range(config.ajet.trainer_common.nnodes)]
    placement = place_processes(ResourceRequest.from_config(config), nodes)
    return ClusterPlan(config, placement, shape, GPUS[gpu], EpisodeSize.of(config))


def test_14b_does_not_train_on_one_gpu_and_the_line_says_what_to_set(tmp_path):
    [problem] = plan_of(config_of(tmp_path, "verl"), qwen_14b(), gpus=1).problems()
    # 20 bytes a parameter 275.1, gathered 7.9, activations 2.8, head 4.6, runtimes 1.5 twice
    assert problem.startswith(
        "a trainer rank needs about 293 GiB of 80 (most of it optimizer, 110)"
    )
    assert problem.endswith(
        "set ajet.trainer_common.fsdp_config.param_offload=true, which needs 275 GiB of CPU memory "
        "a rank instead, use more GPUs, or lora.rank"
    )
    offloaded = config_of(tmp_path, "verl", OFFLOAD + "true")
    assert plan_of(offloaded, qwen_14b(), gpus=1).problems() == []


def test_offloading_is_not_recommended_where_it_would_not_help(tmp_path):
    config = config_of(tmp_path, "verl", "verl.trainer.max_token_len_per_gpu=400000")
    [problem] = plan_of(config, qwen_14b(), gpus=1).problems()
    assert "param_offload" not in problem and "a smaller max_token_len_per_gpu" in problem


def test_a_cache_smaller_than_one_sequence_is_a_problem(tmp_path):
    config = config_of(tmp_path, "verl", "verl.rollout.gpu_memory_utilization=0.4")
    problems = plan_of(config, qwen_14b(), gpu="a100").problems()
    # 32 GiB - 29,540,067,328 bytes of weights - 1.5 GiB = 3,209,058,304; a token has 196,608
    assert "an engine's cache holds 16,322 tokens" in problems[0]
    assert "less than one sequence of ajet.rollout.max_model_len=18,000" in problems[0]


def test_what_the_trainer_keeps_must_leave_room_for_the_engine_that_wakes_beside_it(tmp_path):
    """14B on 8 GPUs: each fits alone. 16 bytes a parameter are 27.5 GiB a rank, 29 with CUDA."""
    config = config_of(tmp_path, "verl", OFFLOAD + "false", UTILIZATION + "0.7")
    [problem] = plan_of(config, qwen_14b()).problems()
    assert problem.startswith("an engine has 56 GiB of 80 (gpu_memory_utilization=0.7)")
    assert "keeps 29 meanwhile" in problem
    assert problem.endswith("or set ajet.trainer_common.fsdp_config.param_offload=true")
    for option in (OFFLOAD + "true", UTILIZATION + "0.6"):
        options = [OFFLOAD + "false", UTILIZATION + "0.7", option]
        assert plan_of(config_of(tmp_path, "verl", *options), qwen_14b()).problems() == []


def test_too_long_a_micro_batch_is_a_problem_of_activations(tmp_path):
    options = ["verl.trainer.max_token_len_per_gpu=40000", CHECKPOINTING + "false"]
    config = config_of(tmp_path, "verl", *options)
    [problem] = plan_of(config, qwen_7b()).problems()
    assert "most of it activations" in problem and "a smaller max_token_len_per_gpu" in problem
    config = config_of(tmp_path, "verl", "verl.trainer.max_token_len_per_gpu=40000")
    assert plan_of(config, qwen_7b()).problems() == []


def test_ranks_that_share_a_sequence_have_their_own_budget_of_it_each(tmp_path):
    options = ["ajet.trainer_common.ulysses_sequence_parallel_size=4"]
    joint = config_of(tmp_path, "verl", *options, "verl.trainer.max_token_len_per_gpu=5000")
    alone = config_of(tmp_path, "verl", "verl.trainer.max_token_len_per_gpu=5000")
    shared, single = (plan_of(config, qwen_7b()) for config in (joint, alone))
    assert shared.trainer_inputs.tokens == 20_000 and single.trainer_inputs.tokens == 5000
    parts, expected = gib_of(shared.trainer_parts), gib_of(single.trainer_parts)
    assert parts["activations"] == expected["activations"]


def node_of(plan):
    rows = [row for row in plan.memory_rows() if row[0] == "node"]
    return {name: float(gib) for _, name, gib, _ in rows}


def test_a_node_has_what_its_ranks_offload_and_the_weights_on_their_way(tmp_path):
    """20 bytes a parameter; two versions in bfloat16; a rank, an engine, eight workers."""
    files = "verl.rollout.sync_method=memory"
    parts = node_of(
        plan_of(config_of(tmp_path, "verl", OFFLOAD + "true", files), qwen_7b(), gpus=1)
    )
    assert parts["offloaded"] == pytest.approx(20 * 7_615_616_512 / GIB, abs=0.05)  # 141.8
    assert parts["/dev/shm"] == pytest.approx(2 * 2 * 7_615_616_512 / GIB, abs=0.05)  # 28.4
    assert parts["processes"] == 2 * 2 + 0.5 * 8


def test_rank_0_that_loads_the_model_needs_more_than_ranks_that_keep_nothing(tmp_path):
    """The model and its reference in bfloat16, whatever the number of ranks."""
    parts = node_of(plan_of(config_of(tmp_path, "verl"), qwen_7b()))
    assert parts["loading"] == pytest.approx(2 * 2 * 7_615_616_512 / GIB, abs=0.05)  # 28.4
    # Later; a server begins with files, and what follows is handed over on the GPUs.
    assert parts["/dev/shm"] == pytest.approx(14.2, abs=0.05)
    assert parts["peak"] == pytest.approx(parts["loading"] + parts["processes"])


def test_7b_on_one_gpu_does_not_fit_a_node_with_too_little_memory(tmp_path):
    config = config_of(tmp_path, "verl", OFFLOAD + "true")
    whole = plan_of(config, qwen_7b(), gpus=1, gpu="h100")
    for memory, problems in [(128.0, 1), (256.0, 0)]:
        nodes = tuple(replace(node, memory=memory) for node in whole.placement.nodes)
        lines = replace(whole, placement=replace(whole.placement, nodes=nodes)).problems()
        assert len(lines) == problems
        if lines:
            # offloaded 141.8, /dev/shm 14.2, a rank, an engine and 8 workers 8
            assert lines[0].startswith("node 0 has 128 GiB of CPU memory, and needs about 164")
            assert "most of it offloaded, 142" in lines[0]


def test_checkpoints_take_twelve_bytes_a_parameter_each_and_one_is_being_written(tmp_path):
    plan = plan_of(config_of(tmp_path, "verl"), qwen_7b())
    assert plan.disk_bytes == 3 * 12 * 7_615_616_512


def test_several_adapters_count_each_on_disk_and_in_the_trainer(tmp_path):
    lora = "ajet.trainer_common.lora"
    one = plan_of(config_of(tmp_path, "verl", f"{lora}.rank=16"), qwen_7b())
    two = plan_of(
        config_of(tmp_path, "verl", f"{lora}.rank=8", f"{lora}.adapters=[a,b]"), qwen_7b()
    )
    assert two.disk_bytes == one.disk_bytes
    assert two.trainer_inputs.lora_rank == one.trainer_inputs.lora_rank == 16


@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_several_adapters_lie_beside_the_weights_of_a_server_that_keeps_them_asleep(
    tmp_path, server
):
    """Of rank 8 all linear layers of the model have 20,185,088 weights."""
    lora, named = "ajet.trainer_common.lora", f"ajet.rollout.name={server}"
    two = plan_of(
        config_of(tmp_path, "verl", named, f"{lora}.rank=8", f"{lora}.adapters=[a,b]"), qwen_7b()
    )
    parts = gib_of(two.engine_parts)
    assert parts["adapters"] == pytest.approx(2 * 2 * 20_185_088 / 2**30)
    assert two.sent_bytes == 4 * 2 * 20_185_088
    bases = next(part for part in two.largest_node.parts if part.name == "bases")
    engines = len(two.placement.engines)
    assert bases.gib == pytest.approx(engines * 2 * 7_615_616_512 / 2**30)
    one = plan_of(config_of(tmp_path, "verl", named, f"{lora}.rank=8"), qwen_7b())
    assert "adapters" not in gib_of(one.engine_parts)
    assert "bases" not in [part.name for part in one.largest_node.parts]


def sides(plan):
    return plan.rollout()[0], plan.update.seconds, plan.sync()[0]


def test_a_disaggregated_step_takes_the_longer_side_and_a_colocated_one_both(tmp_path):
    devices = ["trainer_common.device_mapping=[0,1,2,3]", "rollout.device_mapping=[4,5,6,7]"]
    for lists in ([], [f"ajet.{key}" for key in devices]):  # verl takes turns on any GPUs
        verl = plan_of(config_of(tmp_path, "verl", *lists), qwen_7b())
        assert verl.step_s == pytest.approx(sum(sides(verl)))
    options = ["ajet.rollout.n_vllm_engine=4", "ajet.trainer_common.use_kl_loss=false"]
    trinity = plan_of(config_of(tmp_path, "trinity", *options), qwen_7b())
    rollout_s, update_s, sync_s = sides(trinity)
    assert trinity.step_s == max(rollout_s, update_s) + sync_s


@pytest.mark.parametrize(
    ("options", "seconds", "note"),
    [
        (["verl.rollout.sync_method=memory"], 1.6 * 15.231233024,
            "15.2 GB through /dev/shm, with a checksum"),
        ([], 1.5231233024, "15.2 GB by handles of memory on the same GPU"),
    ],
)  # fmt: skip
def test_weights_travel_to_the_engines(tmp_path, options, seconds, note):
    sync_s, how = plan_of(config_of(tmp_path, "verl", *options), qwen_7b()).sync()
    assert sync_s == pytest.approx(seconds) and how == note


def test_with_lora_the_adapters_alone_are_sent_where_the_engine_adds_them(tmp_path):
    lora, vllm = "ajet.trainer_common.lora.rank=8", "ajet.rollout.name=vllm"
    sync_s, how = plan_of(config_of(tmp_path, "verl", lora, vllm), qwen_7b()).sync()
    assert sync_s == pytest.approx(80_740_352 / 1e10)  # 20,185,088 numbers of 4 bytes
    assert how == (
        "80.7 MB of adapters (merging them not included) by handles of memory on the same GPU"
    )
    sglang = config_of(tmp_path, "verl", lora, "ajet.rollout.name=sglang")
    assert plan_of(sglang, qwen_7b()).sync()[1] == "15.2 GB by handles of memory on the same GPU"


@pytest.mark.parametrize(
    ("options", "num_bytes", "note"),
    [
        # 20,185,088 numbers of adapters of 4 bytes, 7,615,616,512 weights of 2
        (["ajet.rollout.name=in_process"], 161_480_704, "versions of the adapters for the engines"),
        (["ajet.rollout.name=vllm"], 15_392_713_728, "and the weights that servers start from"),
        (["ajet.rollout.name=sglang"], 30_462_466_048, "2 versions of the weights for the engines"),
        (["ajet.rollout.name=vllm", "verl.rollout.sync_method=auto"], 15_231_233_024, "the weig"),
    ],
)  # fmt: skip
def test_with_lora_adapters_and_the_weights_that_a_server_begins_with_are_in_shared_memory(
    options, num_bytes, note, tmp_path
):
    lora = ["ajet.trainer_common.lora.rank=8", "verl.rollout.sync_method=memory"]
    part = plan_of(config_of(tmp_path, "verl", *lora, *options), qwen_7b()).shared_memory
    assert part.gib * GIB == pytest.approx(num_bytes, abs=1)
    assert note in part.note


def test_on_a_cpu_weights_on_their_way_have_the_numbers_that_it_computes_in(tmp_path):
    plan = plan_of(config_of(tmp_path, "verl"), qwen_0_5b(), gpus=0)
    assert plan.shared_memory.gib * GIB == pytest.approx(2 * 4 * qwen_0_5b().parameters, abs=1)


def test_an_in_process_engine_on_the_ranks_gpu_needs_no_shared_memory(tmp_path):
    config = config_of(tmp_path, "verl", "ajet.rollout.name=in_process")
    assert "/dev/shm" not in node_of(plan_of(config, qwen_7b()))


def test_the_update_of_a_config_is_accounted_with_its_layout_and_passes(tmp_path):
    plan = plan_of(config_of(tmp_path, "verl"), qwen_7b())
    assert (update := plan.update) is not None
    assert update.size == EpisodeSize(1500, 7500) and update.tokens.layout == "tree"
    assert (update.ranks, update.ranks_of_node, update.recomputes) == (8, 8, True)
    assert update.tokens.num == 32 * (1500 + 4 * 7500)


def test_a_model_that_is_not_at_hand_has_no_memory_problems(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = config_of(tmp_path, "verl")
    placement = plan_of(config, qwen_7b()).placement
    assert memory_problems(config, placement, GPUS["a100"]) == []
    assert not Path("m").exists()
