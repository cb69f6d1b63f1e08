"""Sampling in other processes: the same tokens as in the server's, also after one is lost."""

import os
import signal

import numpy as np
import psutil
import pytest

pytest.importorskip("tinker")

from ajet.core.config import load_config
from ajet.core.errors import AjetError
from ajet.core.record.run_folder import RunFolder
from ajet.serve.tinker.samplers import CONFIG, SamplerProcess
from ajet.serve.tinker.server import make_service, start_server
from tests.serve.tinker.server_process import MODEL, OPTIONS, serving
from tests.serve.tinker.wire_client import WireClient

pytestmark = pytest.mark.ray

IDS = [16, 17, 220, 10, 220, 20, 220, 28, 220, 16, 22]


def trained_sampler(client):
    model = client.create_model(MODEL)
    client.answer(client.forward_backward(model, 1, IDS))
    client.answer(client.optim_step(model, 2))
    request = {"model_id": model, "seq_id": 3, "sampling_session_seq_id": 0}
    answer = client.answer(client.post("save_weights_for_sampler", **request))
    return answer["sampling_session_id"]


def tokens(client, sampler, seq_id):
    reply = client.sample(sampler, seq_id, IDS[:4], 4, max_tokens=8, seed=5, stop=[])
    return [np.frombuffer(sequence.tokens, np.int32).tolist() for sequence in reply.sequences]


def kill_samplers():
    processes = [
        p for p in psutil.process_iter(["cmdline"]) if "ray::SamplerProcess" in p.cmdline()[0:1]
    ]
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    return len(processes)


def test_other_processes_sample_what_the_server_would(tmp_path, ray_session):
    with serving(tmp_path / "alone") as address:
        client = WireClient(address)
        alone = tokens(client, trained_sampler(client), 0)
    options = [f"ajet.model.path='{MODEL}'", "ajet.serve.port=auto", *OPTIONS]
    options += ["ajet.rollout.n_vllm_engine=2"]
    config = load_config(CONFIG, options, backbone="verl", exp_dir=tmp_path / "ray")
    with RunFolder.open(config.run_folder) as run:
        server = start_server(make_service(config, run, on_ray=True), config, None)
        client = WireClient(server.base_url.removesuffix("/v1"))
        sampler = trained_sampler(client)
        assert tokens(client, sampler, 0) == alone
        assert kill_samplers() == 2
        assert tokens(client, sampler, 1) == alone
        server.close(finish_s=1)


@pytest.mark.parametrize(
    ("num_gpus", "message"),
    [(0, "a sampler did not start: .*no-such-folder"), (1, "need 2 GPUs, and this Ray has 0")],
)
def test_processes_that_cannot_start_are_an_error(tmp_path, ray_session, num_gpus, message):
    from ajet.cluster.actors import ActorPool

    options = ["ajet.model.path='/no-such-folder'"]
    config = load_config(CONFIG, options, backbone="verl", exp_dir=tmp_path)
    with pytest.raises(AjetError, match=message):
        ActorPool(SamplerProcess, (config, 1), 2, num_gpus=num_gpus, name="sampler")
