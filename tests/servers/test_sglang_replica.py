"""The SGLang replica against a stand-in that speaks SGLang's API."""

import asyncio
import copy
import time
from dataclasses import replace
from inspect import signature

import pytest
import torch
from torch.multiprocessing import reductions

from ajet.core.errors import ModelError
from ajet.core.inference.replica import ReplicaDown
from ajet.core.weight_sync.adapters import Adapters
from ajet.core.weight_sync.broadcast import BroadcastSender
from ajet.core.weight_sync.folder import WeightFolder
from ajet.core.weight_sync.load import LiveSource
from ajet.core.weight_sync.manifest import WeightsError
from ajet.servers import sglang_replica
from ajet.servers.process import free_port
from ajet.servers.replica import ServedModel
from ajet.servers.settings import SglangServerArgs
from ajet.servers.sglang_replica import SglangReplica
from tests.handover import two_senders
from tests.replica_contract import CONTRACT, LONG, MAX_LEN, PROMPT, SHORT, VOCAB, Bench, tiny_model
from tests.sglang_server import Serving, SglangStandIn


@pytest.fixture(scope="module")
def models():
    return [tiny_model(0), tiny_model(1)]


def _bench(models, path, **options):
    stand_in = SglangStandIn(copy.deepcopy(models[0]), **options)
    serving = Serving(stand_in, free_port())
    replica = SglangReplica("r0", serving.url, ServedModel("m", VOCAB, MAX_LEN))
    return stand_in, serving, Bench(replica, models, WeightFolder(path))


@pytest.fixture
async def bench(models, tmp_path):
    stand_in, serving, bench = _bench(models, tmp_path)
    bench.stand_in = stand_in
    with serving:
        yield bench
        await bench.replica.close()


@pytest.mark.parametrize("claim", CONTRACT, ids=lambda claim: claim.__name__)
async def test_contract(claim, bench):
    await claim(bench)


async def test_weights_from_memory_of_the_same_device_arrive(bench):
    source = LiveSource(5, bench.models[1].named_parameters)
    report = await bench.replica.load_weights(source, 5)
    assert report.num_bytes == sum(p.nbytes for p in bench.models[1].parameters())
    reply = await bench.replica.generate(PROMPT, SHORT, "live/0000")
    bench.assert_sampled_by(1, reply)
    assert reply.policy_version == 5 and bench.stand_in.weight_version == "5"
    assert bench.stand_in.calls.index("/flush_cache") < bench.stand_in.calls.index("/generate")


@pytest.mark.parametrize(("version", "is_within"), [("0.5.23", True), ("0.5.20", False)])
async def test_weights_from_memory_arrive_within_an_update_session_where_there_are_any(
    models, tmp_path, version, is_within
):
    stand_in, serving, bench = _bench(models, tmp_path, version=version)
    with serving:
        await bench.replica.load_weights(LiveSource(1, bench.models[1].named_parameters), 1)
        bench.assert_sampled_by(1, await bench.replica.generate(PROMPT, SHORT, "e/0000"))
        assert ("/begin_weight_update" in stand_in.calls) == is_within
        assert not stand_in.has_session
        await bench.replica.close()


async def test_an_update_session_is_closed_after_a_load_that_failed(bench):
    wrong = LiveSource(1, lambda: [("no.such.weight", torch.ones(3))])
    with pytest.raises(WeightsError, match=r"no\.such\.weight"):
        await bench.replica.load_weights(wrong, 1)
    assert not bench.stand_in.has_session
    await bench.replica.load_weights(LiveSource(2, bench.models[1].named_parameters), 2)
    bench.assert_sampled_by(1, await bench.replica.generate(PROMPT, SHORT, "e/0000"))


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 5000}])
async def test_a_cut_that_sglang_has_no_log_probabilities_for_is_refused_before_it_is_sent(
    bench, cut
):
    with pytest.raises(ModelError, match=r"^r0: request e/0000: top_p=.* top_k of 1 to 4096"):
        await bench.replica.generate(PROMPT, replace(SHORT, **cut), "e/0000")
    assert "/generate" not in bench.stand_in.calls


async def test_an_emptied_cache_has_no_prefix_and_what_runs_is_waited_for(bench):
    stats = lambda: bench.stand_in.replica._engine.stats.cached_prompt_tokens  # noqa: E731
    running = asyncio.create_task(
        bench.replica.generate(PROMPT, replace(LONG, max_tokens=60), "e/0000")
    )
    while not bench.stand_in.running:
        await asyncio.sleep(0.001)
    await bench.replica.empty_cache()
    assert running.done() and len(running.result().token_ids) == 60
    await bench.replica.generate(PROMPT, SHORT, "e/0001")
    assert stats() == 0
    await bench.replica.generate(PROMPT, SHORT, "e/0002")
    assert stats() == len(PROMPT) - 1


def test_handles_are_sent_in_the_form_that_the_servers_torch_opens():
    names = list(signature(reductions.rebuild_cuda_tensor).parameters)
    sent = tuple(b"\x03c" + bytes(64) if name == "storage_handle" else name for name in names)
    found = sglang_replica.with_portable_handle(sent)
    assert dict(zip(names, found, strict=True)) == {
        name: bytes(64) if name == "storage_handle" else name for name in names
    }


async def test_weights_that_the_server_says_it_took_and_did_not_are_noticed(bench):
    await bench.load(1)
    bench.stand_in.loses_weights = True
    with pytest.raises(WeightsError, match=r"^r0: weights of version 2 did not arrive"):
        await bench.load(0)


async def test_weights_are_there_before_a_sleeper_takes_its_cache_back(bench):
    await bench.replica.sleep()
    await bench.load(1)
    assert bench.stand_in.released == {"kv_cache"}
    bench.stand_in.calls.clear()
    await bench.replica.health()
    assert bench.stand_in.calls == []  # /health samples a token, without memory
    await bench.replica.wake()
    assert bench.stand_in.released == {"kv_cache"}  # the load has its room
    await bench.replica.resume()
    assert not bench.stand_in.released
    bench.assert_sampled_by(1, await bench.replica.generate(PROMPT, SHORT, "e/0000"))


async def test_a_server_that_is_gone_is_down(models, tmp_path):
    _, serving, bench = _bench(models, tmp_path)
    with serving:
        await bench.replica.health()
        running = asyncio.create_task(bench.replica.generate(PROMPT, LONG, "e/0000"))
        await asyncio.sleep(0.01)
        serving.stop()
        with pytest.raises(ReplicaDown):
            await running
    with pytest.raises(ReplicaDown, match=r"^r0: GET /health: "):
        await bench.replica.health()
    with pytest.raises(ReplicaDown, match=r"^r0: POST /generate: "):
        await bench.replica.generate(PROMPT, SHORT, "e/0001")
    await bench.replica.close()


@pytest.mark.parametrize(
    ("version", "taken"),
    [("0.5.23", True), ("0.5.10", True), ("0.5.9.post1", False), ("0.4.10", False)],
)
async def test_an_old_sglang_is_refused_in_one_line(models, tmp_path, version, taken):
    _, serving, bench = _bench(models, tmp_path, version=version)
    with serving:
        if taken:
            assert await bench.replica.check_version() == version
        else:
            with pytest.raises(
                ModelError, match=rf"^r0: SGLang {version} .* install sglang>=0\.5\.10"
            ):
                await bench.replica.check_version()
        await bench.replica.close()


async def test_no_log_probability_is_made_up_where_the_server_has_none(models, tmp_path):
    _, serving, bench = _bench(models, tmp_path, has_masks=False, has_checker=False)
    with serving:
        with pytest.raises(ModelError, match=r"after a cut; set top_p: 1\.0 and top_k: -1$"):
            await bench.replica.generate(PROMPT, replace(SHORT, top_k=3), "e/0000")
        await bench.load(1)  # without a checker, the folder alone is checked
        bench.assert_sampled_by(1, await bench.replica.generate(PROMPT, SHORT, "e/0001"))
        await bench.replica.close()


async def test_a_stop_at_a_token_that_is_not_ours_is_an_error(models, tmp_path):
    stand_in, serving, bench = _bench(models, tmp_path)
    with serving:
        free = await bench.replica.generate(PROMPT, SHORT, "e/0000")
        eos = free.token_ids[4]
        stand_in.eos_token_ids = (eos,)
        said = rf"^r0: request e/0001: SGLang stopped at {eos}, .* stop tokens \[7\]; add it to"
        with pytest.raises(ModelError, match=said):
            await bench.replica.generate(PROMPT, replace(SHORT, stop_token_ids=(7,)), "e/0001")
        ours = replace(SHORT, stop_token_ids=(eos,))
        assert (await bench.replica.generate(PROMPT, ours, "e/0002")).finish_reason == "stop"
        await bench.replica.close()


async def test_a_server_that_is_told_to_ignore_eos_ignores_stop_tokens_too(bench):
    from ajet.servers.sglang_replica import request_body

    free = await bench.replica.generate(PROMPT, SHORT, "e/0000")
    body = request_body(PROMPT, replace(SHORT, stop_token_ids=free.token_ids), "e/0001")
    assert body["sampling_params"].keys().isdisjoint({"ignore_eos", "ebnf"})
    body["sampling_params"]["ignore_eos"] = True
    answer = await bench.replica.request("POST", "/generate", json=body)
    assert answer["meta_info"]["finish_reason"]["type"] == "length"


@pytest.mark.parametrize("act", ["sleep", "load"])
async def test_a_health_check_under_way_is_waited_for_and_none_begins(bench, act):
    bench.stand_in.health_s = 0.2
    probe = asyncio.create_task(bench.replica.health())
    while not bench.stand_in.num_probes:
        await asyncio.sleep(0.005)
    acting = asyncio.create_task(bench.replica.sleep() if act == "sleep" else bench.load(1))
    while not acting.done():
        await asyncio.sleep(0.02)
        await bench.replica.health()
    await asyncio.gather(probe, acting)
    assert not bench.stand_in.is_dead
    assert bool(bench.stand_in.released) == (act == "sleep")


async def test_a_health_check_that_nobody_waits_for_delays_the_sleep_alone(bench):
    bench.stand_in.health_s = 0.5
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bench.replica.health(), 0.1)
    await bench.replica.sleep()
    assert bench.stand_in.calls.count("/flush_cache") > 1
    assert bench.stand_in.released and not bench.stand_in.is_dead


async def test_the_loop_runs_while_a_folder_of_weights_is_checked(bench, monkeypatch):
    from ajet.servers import replica

    def slow(source):
        time.sleep(0.3)
        return source.manifest()

    monkeypatch.setattr(replica, "check_weights", slow)
    loading = asyncio.create_task(bench.load(1))
    num_turns = 0
    while not loading.done():
        await asyncio.sleep(0.01)
        num_turns += 1
    assert num_turns > 15


async def test_a_request_that_is_ended_in_the_queue_is_empty_and_no_error(bench):
    bench.stand_in.is_queueing = True
    cut = replace(SHORT, top_k=5)
    queued = asyncio.create_task(bench.replica.generate(PROMPT, cut, "e/0000"))
    while not bench.stand_in.running:
        await asyncio.sleep(0.005)
    await bench.replica.pause(abort=True)
    reply = await queued
    assert (reply.token_ids, reply.logprobs, reply.finish_reason) == ((), (), "abort")


async def broadcast(bench, tensors, version, backend):
    """Has the replica receive these from a sender in a thread."""
    sender = BroadcastSender("127.0.0.1", backend=backend, timeout_s=30)
    sent = {name: tensor.detach() for name, tensor in tensors}
    sender.hold(version, {name: tuple(t.shape) for name, t in sent.items()}, sent.items)
    (receiver,) = sender.receivers(version, 1)
    sending = asyncio.create_task(asyncio.to_thread(sender.send))
    try:
        return await bench.replica.load_weights(receiver, version)
    finally:
        await asyncio.gather(sending, return_exceptions=True)


@pytest.mark.parametrize("backend", ["gloo", "ipc"])
async def test_weights_of_a_broadcast_are_handed_to_the_server_in_buckets(
    bench, backend, monkeypatch
):
    monkeypatch.setattr(sglang_replica, "BUCKET_BYTES", 1 << 17)  # a few of them
    report = await broadcast(bench, bench.models[1].named_parameters(), 5, backend)
    assert report.num_bytes == sum(p.nbytes for p in bench.models[1].parameters())
    reply = await bench.replica.generate(PROMPT, SHORT, "broadcast/0000")
    bench.assert_sampled_by(1, reply)
    assert reply.policy_version == 5 and bench.stand_in.weight_version == "5"
    assert bench.stand_in.calls.count("/update_weights_from_tensor") > 1
    assert not bench.stand_in.has_session


async def test_each_worker_of_a_server_gets_the_tensors_on_its_own_gpu(models, tmp_path):
    stand_in, serving, bench = _bench(models, tmp_path)
    replica = SglangReplica("r0", serving.url, ServedModel("m", VOCAB, MAX_LEN), num_workers=2)
    sent = {name: tensor.detach() for name, tensor in models[1].named_parameters()}
    senders, source = two_senders(5, sent)
    with serving:
        sending = [asyncio.create_task(asyncio.to_thread(sender.send)) for sender in senders]
        report = await replica.load_weights(source, 5)
        for sent_report in await asyncio.gather(*sending):
            assert sent_report.checksum == report.checksum
        first, second = stand_in.payloads
        assert first != second  # two copies in memory
        bench.assert_sampled_by(1, await replica.generate(PROMPT, SHORT, "e/0000"))
        await replica.load_weights(LiveSource(6, models[0].named_parameters), 6)
        first, second = stand_in.payloads
        assert first == second  # one, for both workers
        await replica.close()
        await bench.replica.close()


async def test_a_broadcast_that_the_server_refuses_leaves_the_old_version(bench):
    with pytest.raises(WeightsError, match=r"no\.such\.weight"):
        await broadcast(bench, [("no.such.weight", torch.ones(3))], 5, "ipc")
    assert bench.replica.version == 0 and not bench.stand_in.has_session
    bench.assert_sampled_by(0, await bench.replica.generate(PROMPT, SHORT, "e/0000"))


async def test_adapters_alone_are_refused_in_one_line(bench):
    source = LiveSource(1, dict, Adapters({}, "float32", "-"))
    with pytest.raises(WeightsError, match=r"^r0: an SGLang server cannot merge adapters$"):
        await bench.replica.load_weights(source, 1)


def test_a_grammar_goes_to_the_server_as_it_is():
    from ajet.servers.sglang_replica import request_body

    body = request_body(PROMPT, replace(SHORT, grammar='start: "a"'), "e/0000")
    assert body["sampling_params"]["ebnf"] == 'start: "a"'
    given = SglangServerArgs("m", 30000, "python", grammars=True).arguments()
    assert "--grammar-backend llguidance" in " ".join(given)
    assert "--skip-tokenizer-init" not in given


def test_the_server_is_started_with_what_the_adapter_relies_on():
    asked = SglangServerArgs("m", 30000, "python", tensor_parallel_size=2, seed=5).arguments()
    text = " ".join(asked)
    for part in (
        "python -m sglang.launch_server --model-path m --host 127.0.0.1 --port 30000",
        "--tp-size 2", "--context-length 4096", "--max-running-requests 64",
        "--mem-fraction-static 0.6", "--random-seed 5", "--skip-tokenizer-init",
        "--enable-memory-saver", "--enable-deterministic-inference",
    ):  # fmt: skip
        assert part in text
