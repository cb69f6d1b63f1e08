"""One, two and four processes over gloo make the same update: the number of ranks is no part of an
experiment. Each number of ranks is one start of processes, which run all cases."""

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from rank_cases import (
    CASES,
    as_read,
    in_bfloat16,
    nan_on_one,
    refused,
    relay,
    run_case,
    run_rank,
    seeing_relay,
    several,
    several_relay,
)
from update_fixtures import tiny_model

from ajet.core.errors import ConfigError
from ajet.core.model.load import LoadedModel
from ajet.core.ranks.ranks import ONE_RANK
from ajet.core.ranks.sequence import SequenceGroup
from ajet.core.update.export import export_model
from tests.fakes import chat_tokenizer
from tests.processes import free_port

OF_TWO = [name for name in CASES if name != "sequence_of_four"]
OF_FOUR = [
    "images_trained",
    "tree",
    "padded",
    "lora",
    "one_row",
    "critic",
    "sequence",
    "sequence_of_four",
]
IMPORTED_ONCE = [
    "ajet.core.learning.learner",
    "ajet.core.ranks.sharding",
    "torch.distributed.checkpoint",
    "peft",
]
# What the forward passes went through depends on how the rows were divided.
OF_THE_DIVISION = ("tree_tokens", "padded_tokens", "seconds")


def start(size, folder, names):
    """Every case's results, by rank. The server that the processes fork from imports torch once,
    and has used none of its threads. It is told modules of ajet: before Python 3.12.4 it finds none
    in this folder, and says nothing."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED_ONCE)
    port = free_port()
    processes = [
        context.Process(target=run_rank, args=(rank, size, port, folder, names))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=1500)
    faults = [file.read_text() for file in sorted(folder.glob(f"fault.{size}.*"))]
    assert [process.exitcode for process in processes] == [0] * size, "\n".join(faults)
    return {
        name: [
            torch.load(folder / f"{name}.{size}.{rank}.pt", weights_only=False)
            for rank in range(size)
        ]
        for name in names
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def first_relay(folder):
    """One process begins the relay."""
    torch.set_num_threads(1)
    return relay(ONE_RANK, folder / "relay", 1)


@pytest.fixture(scope="module")
def two(folder, first_relay):
    names = ["nan_on_one", "bfloat16", "relay", "collectives", "refusals", "as_read", "two_models"]
    several_relay(ONE_RANK, folder / "several_relay", 1)
    seeing_relay(ONE_RANK, folder / "seeing_relay", 1)
    names += ["seeing_relay", "several", "several_gathered", "several_float64", "several_relay"]
    return start(2, folder, [*OF_TWO, *names, "apart"])


@pytest.fixture(scope="module")
def four(folder, two):
    return start(4, folder, [*OF_FOUR, "nan_on_one", "relay"])


@pytest.fixture(scope="module")
def one():
    """Each case in this process, without torch.distributed; once."""
    torch.set_num_threads(1)
    known = {}

    def of(name):
        if name not in known:
            known[name] = run_case(name)
        return known[name]

    return of


def assert_same_tensors(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-5, msg=name)


def assert_same(found, expected):
    assert_same_tensors(found["tensors"], expected["tensors"])
    assert_same_tensors(found.get("published", {}), expected.get("published", {}))
    for key in ("scores", "reference"):
        if key in expected:
            np.testing.assert_allclose(found[key], expected[key], atol=2e-5)
    assert found.get("cuts") == expected.get("cuts")
    rows = expected.get("tokens", {})
    assert found.get("tokens", {}).keys() == rows.keys()
    for key, numbers in rows.items():
        assert found["tokens"][key].keys() == numbers.keys()
        for name, array in numbers.items():
            np.testing.assert_allclose(found["tokens"][key][name], array, atol=2e-5, rtol=1e-4)
    for step, metrics in enumerate(expected["metrics"]):
        for key, value in metrics.items():
            if key not in OF_THE_DIVISION:
                is_same = found["metrics"][step][key] == pytest.approx(value, rel=1e-4, abs=1e-5)
                assert is_same, (step, key)


@pytest.mark.parametrize("name", OF_TWO)
def test_two_ranks_make_the_update_of_one(name, one, two):
    for found in two[name]:
        assert_same(found, one(name))


@pytest.mark.parametrize("name", ["float64", "float64_critic", "images_float64"])
def test_in_float64_two_ranks_differ_from_one_by_no_more_than_it_rounds(name, one, two):
    for found in two[name]:
        for key, tensor in one(name)["tensors"].items():
            if not key.endswith(".step"):
                assert tensor.dtype == found["tensors"][key].dtype == torch.float64
            torch.testing.assert_close(found["tensors"][key], tensor, rtol=0, atol=1e-11, msg=key)


@pytest.mark.parametrize("name", OF_FOUR)
def test_four_ranks_make_the_update_of_one(name, one, four):
    for found in four[name]:
        assert_same(found, one(name))


def test_a_single_rank_of_a_sharded_model_makes_the_update_too(one, folder):
    found = start(1, folder, ["tree", "critic", "several"])
    for name in ("tree", "critic"):
        assert_same(found[name][0], one(name))
    assert_same(found["several"][0], several(ONE_RANK))


def test_every_rank_reports_the_same(four):
    for name in OF_FOUR:
        first, *others = four[name]
        for other in others:
            for mine, theirs in zip(first["metrics"], other["metrics"], strict=True):
                assert mine | {"seconds": 0} == theirs | {"seconds": 0}
            assert np.array_equal(first["scores"], other["scores"])


def test_ranks_hold_the_bits_of_what_rank_0_alone_has_read(two):
    """Rank 1 made its models without memory."""
    expected = as_read(ONE_RANK)["tensors"]
    assert any("inv_freq" in name for name in expected)
    for found in two["as_read"]:
        assert found["tensors"].keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(found["tensors"][name], tensor), name


def test_a_rank_that_made_another_model_is_named_on_all(two):
    for found in two["two_models"]:
        assert found["said"].startswith("trainer rank 1 and rank 0 have made different models: ")


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.settings.get("lora")]
)
def test_adapters_of_two_ranks_give_an_engine_the_bits_of_all_weights(name, two):
    for found in two[name]:
        assert found["alone"].keys() == found["published"].keys()
        for weight, expected in found["published"].items():
            assert torch.equal(found["alone"][weight], expected), weight


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [("several", 1e-5), ("several_gathered", 1e-5), ("several_float64", 1e-11)],
)
def test_several_adapters_learn_on_two_ranks_what_they_learn_on_one(name, tolerance, two):
    expected = several(ONE_RANK, is_float64=name.endswith("float64"))
    assert expected["con_moved"] == []
    for found in two[name]:
        assert_same(found, expected)
        assert found["con_moved"] == []  # by an update of pro
        for key in ("tensors", "published"):
            for weight, tensor in expected[key].items():
                if not weight.endswith(".step"):
                    torch.testing.assert_close(
                        found[key][weight], tensor, rtol=0, atol=tolerance, msg=weight
                    )
        for weight, tensor in expected["base"].items():
            assert torch.equal(found["base"][weight], tensor), weight


def test_several_adapters_go_on_from_one_rank_to_two_and_back(folder, two, tmp_path):
    several_relay(ONE_RANK, tmp_path, 1)
    straight = [several_relay(ONE_RANK, tmp_path, step) for step in (2, 3)]
    for found in two["several_relay"]:
        assert_same_tensors(found["tensors"], straight[0]["tensors"])
    last = several_relay(ONE_RANK, folder / "several_relay", 3)
    assert_same_tensors(last["tensors"], straight[1]["tensors"])


def test_a_trained_tower_goes_on_from_one_rank_to_two_and_back(folder, two, tmp_path):
    seeing_relay(ONE_RANK, tmp_path, 1)
    straight = [seeing_relay(ONE_RANK, tmp_path, step) for step in (2, 3)]
    assert any("vision_tower" in name for name in straight[0]["tensors"])
    for found in two["seeing_relay"]:
        assert_same_tensors(found["tensors"], straight[0]["tensors"])
    last = seeing_relay(ONE_RANK, folder / "seeing_relay", 3)
    assert_same_tensors(last["tensors"], straight[1]["tensors"])


@pytest.mark.parametrize("size", [2, 4])
def test_a_gradient_of_nan_on_one_rank_skips_the_step_on_all(size, two, four):
    assert nan_on_one(ONE_RANK)["metrics"][0]["nonfinite_steps"] == 1
    for found in (two if size == 2 else four)["nan_on_one"]:
        metrics = found["metrics"][0]
        assert (metrics["nonfinite_steps"], metrics["optimizer_steps"]) == (1, 0)
        for name, fresh in tiny_model().named_parameters():
            assert torch.equal(found["tensors"][f"model.{name}"], fresh)


def test_bfloat16_is_computed_over_float32_shards_and_published(two):
    expected = in_bfloat16(ONE_RANK)["metrics"][0]
    for found in two["bfloat16"]:
        assert {t.dtype for t in found["tensors"].values()} == {torch.float32}
        assert {t.dtype for t in found["published"].values()} == {torch.bfloat16}
        assert found["gathered_types"] == ["torch.bfloat16"]  # cast before they travel
        metrics = found["metrics"][0]
        assert metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.03)
        assert metrics["grad_norm"] != pytest.approx(expected["grad_norm"], rel=1e-6)


def test_a_run_goes_on_from_one_rank_to_two_to_four_and_back_to_one(
    folder, first_relay, two, four, tmp_path
):
    straight = [relay(ONE_RANK, tmp_path, step) for step in (1, 2, 4, 5)]
    last = relay(ONE_RANK, folder / "relay", 5)
    taken_up = [[first_relay], two["relay"], four["relay"], [last]]
    for of_ranks, expected in zip(taken_up, straight, strict=True):
        for found in of_ranks:
            assert_same_tensors(found["tensors"], expected["tensors"])


def test_ranks_that_share_no_folder_save_and_load_through_rank_0(two, folder):
    first, other = two["apart"]
    assert (first["sees"], other["sees"]) == (True, False)
    files = {path.name for path in (folder / "apart/here/step_000001").iterdir()}
    assert files == {"model.safetensors", "tensors.safetensors", "state.json", "manifest.json"}
    for found in two["apart"]:
        assert found["loaded"].keys() == first["saved"].keys()
        for name, tensor in first["saved"].items():
            assert torch.equal(found["loaded"][name], tensor), name
        assert "model.model.embed_tokens.weight" in found["sharded"]
        assert "is not one of its tensors" in found["refused"]


def test_what_four_ranks_wrote_becomes_a_model_folder(folder, four):
    from transformers import AutoModelForCausalLM

    loaded = LoadedModel(tiny_model(seed=7), chat_tokenizer("qwen2_5"), "tiny")
    export_model(loaded, folder / "relay" / "step_000004", folder / "out")
    model = AutoModelForCausalLM.from_pretrained(folder / "out")
    for name, weight in model.named_parameters():
        assert torch.equal(weight, four["relay"][0]["tensors"][f"model.{name}"])


def test_weights_that_stay_gathered_are_gathered_and_gradients_summed_once_a_step(two):
    """Two layers and the rest: three groups. In each of two micro-batches layers are gathered for
    the forward and the backward pass, the rest once."""
    for found in two["collectives"]:
        gathers, sums = (
            {kept: counts[name] for kept, counts in found.items()}
            for name in ("_allgather_base_", "_reduce_scatter_base_")
        )
        assert gathers == {False: 2 * 5, True: 3} and sums == {False: 2 * 3, True: 3}


def test_what_a_user_gets_wrong_is_one_line_on_every_rank(two):
    for said in two["refusals"]:
        assert "\n" not in "".join(said.values())
        assert "does not fit the model" in said["another_model"]
        assert "model.layers.1." in said["fewer_layers"]
        assert "step_000001 was not saved: Not a directory" in said["no_folder"]
        assert "does not divide the number of trainer ranks (2)" in said["of_three"]
        assert "ulysses_sequence_parallel_size=2" in said["padded_in_sequence"]
    assert two["refusals"][0] == two["refusals"][1]


@pytest.mark.parametrize(("size", "heads", "kv_heads"), [(3, 4, 2), (4, 8, 6), (8, 4, 4)])
def test_heads_that_ranks_cannot_share_are_one_line(size, heads, kv_heads):
    with pytest.raises(ConfigError, match=f"ulysses_sequence_parallel_size={size}") as caught:
        SequenceGroup(0, size, None).check_heads(heads, kv_heads)
    assert "\n" not in str(caught.value)


def test_heads_that_ranks_can_share_are_taken():
    for size, heads, kv_heads in [(2, 4, 2), (4, 4, 2), (2, 14, 2), (4, 28, 4), (1, 3, 1)]:
        SequenceGroup(0, size, None).check_heads(heads, kv_heads)


def test_a_rank_without_the_others_is_one_line():
    from ajet.core.ranks.ranks import connect

    message = refused(lambda: connect(1, 2, host="127.0.0.1", port=free_port(), timeout_s=1))
    assert "rank 1 of 2 could not join the others" in message and "\n" not in message
