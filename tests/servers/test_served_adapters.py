"""Several adapters in a server: the replicas against stand-ins that speak the servers' APIs. A real
vLLM runs the same claims in test_vllm_replica.py."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from ajet.core.errors import ConfigError
from ajet.core.weight_sync.folder import WeightFolder
from ajet.core.weight_sync.manifest import WeightsError
from ajet.servers.adapters import ServedAdapters, adapted_modules, write_peft_folder
from ajet.servers.process import free_port
from ajet.servers.replica import ServedModel
from ajet.servers.settings import SglangServerArgs, VllmServerArgs, max_lora_rank
from ajet.servers.sglang_replica import SglangReplica
from ajet.servers.vllm_replica import VllmReplica
from tests.adapter_contract import ADAPTER_CONTRACT, LORA, AdapterBench, learn, trainer_models
from tests.replica_contract import MAX_LEN, VOCAB, save, tiny_model
from tests.sglang_server import Serving, SglangStandIn
from tests.vllm_server import VllmStandIn


@pytest.fixture(params=["vllm", "sglang"])
async def bench(request, tmp_path):
    base = tiny_model(0)
    is_vllm = request.param == "vllm"
    adapters = ServedAdapters(LORA, tmp_path / "served", base_is_adapter=is_vllm)
    model = ServedModel("m", VOCAB, MAX_LEN)
    if is_vllm:
        stand_in = VllmStandIn(tiny_model(0), "m")
    else:
        stand_in = SglangStandIn(tiny_model(0), keeps_weights=True)
    with Serving(stand_in, free_port()) as serving:
        if is_vllm:
            replica = VllmReplica("r0", serving.url, model, adapters=adapters, sleep_mode=True)
        else:
            replica = SglangReplica("r0", serving.url, model, adapters=adapters)
        made = trainer_models(base)
        bench = AdapterBench(replica, base, made, WeightFolder(tmp_path / "weights"))
        bench.stand_in = stand_in
        bench.hold = partial(setattr, stand_in.models, "is_held")
        yield bench
        await replica.close()
    assert not (tmp_path / "served").exists()


@pytest.mark.parametrize("claim", ADAPTER_CONTRACT, ids=lambda claim: claim.__name__)
async def test_contract(claim, bench):
    await claim(bench)


async def test_the_server_has_each_adapter_once_and_loads_what_has_changed_alone(bench, tmp_path):
    await bench.publish()
    await bench.publish()
    learn(bench.made.trained["pro"], seed=5)
    await bench.publish()
    base = ["@1"] if isinstance(bench.stand_in, VllmStandIn) else []
    assert versions(bench.stand_in.models.names) == {"", "con@1", "pro@3", *base}
    files = (path.name for path in (tmp_path / "served").iterdir())
    assert versions(files) == {"con@1", "pro@3", *base}
    calls = [("load", name) for name in ("pro@1", "con@1", *base, "pro@3")]
    told = [(what, name.partition("-")[0]) for what, name in bench.stand_in.lora_calls]
    assert told == [*calls, ("unload", "pro@1")]


def versions(names):
    """The names without their checksums."""
    return {name.partition("-")[0] for name in names}


async def test_a_version_that_is_trained_again_has_another_name(bench):
    """Else prefixes that the server has cached under the first one's would be the second one's."""
    loaded = []
    for seed, version in ((1, 5), (2, 4), (3, 5), (1, 5)):
        learn(bench.made.trained["pro"], seed)
        bench.version = version - 1
        await bench.publish()
        loaded += [name for what, name in bench.stand_in.lora_calls if what == "load"]
        bench.stand_in.lora_calls.clear()
        reply = await bench.ask("pro")
        assert reply.policy_version == version and bench.error(reply, "pro") < bench.tolerance
    of_pro = [name for name in loaded if name.startswith("pro@5")]
    assert len(of_pro) == 3 and len(set(of_pro)) == 2  # the first and the last are the same


def arguments(kind, path):
    args = kind(str(path), 1, "py", adapters=LORA)
    return " ".join(args.arguments()), args


def test_a_vllm_server_has_room_for_the_adapters_and_for_those_before_them(tmp_path):
    text, args = arguments(VllmServerArgs, tmp_path)
    assert "--enable-lora" in text and "--max-lora-rank 8" in text  # of rank 4
    assert "--max-loras 3 " in text and "--max-cpu-loras 5 " in text  # with the base's
    assert args.environment()["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    alone = replace(args, adapters=None)
    assert "lora" not in " ".join([*alone.arguments(), *alone.environment()]).lower()
    assert max_lora_rank(1) == 1 and max_lora_rank(65) == 128
    with pytest.raises(ConfigError, match=r"lora\.rank=513: vLLM supports ranks up to 512"):
        max_lora_rank(513)


def test_an_sglang_server_has_room_for_them_and_for_the_base_and_keeps_it_in_its_sleep(tmp_path):
    model = tmp_path / "model"
    save(tiny_model(0), model)
    text, _ = arguments(SglangServerArgs, model)
    assert "--max-lora-rank 4" in text  # which takes any
    assert "--max-loras-per-batch 3 " in text and "--max-loaded-loras 5 " in text
    assert "--enable-lora --enable-weights-cpu-backup" in text
    modules = "down_proj gate_proj k_proj o_proj q_proj up_proj v_proj"
    assert f"--lora-target-modules {modules}" in text


@pytest.mark.parametrize(
    ("targets", "modules"),
    [
        (("self_attn.q_proj", "v_proj"), ["q_proj", "v_proj"]),
        (r".*\.mlp\.(up|down)_proj", ["down_proj", "up_proj"]),
    ],
)
def test_the_adapted_modules_are_those_that_peft_finds(tmp_path, targets, modules):
    save(tiny_model(0), tmp_path / "model")
    assert adapted_modules(replace(LORA, targets=targets), tmp_path / "model") == modules


def test_an_adapter_of_an_embedding_is_one_line(tmp_path):
    name = "pro.base_model.model.model.embed_tokens.lora_embedding_A.default"
    with pytest.raises(WeightsError, match="does not belong to a linear layer"):
        write_peft_folder(tmp_path / "pro@1", "pro", {name: torch.ones(4, 9)}, LORA)
