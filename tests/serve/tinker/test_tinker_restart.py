"""A server that was killed goes on: nothing acknowledged is lost, nothing counts twice, and the
weights have the same bits."""

import asyncio
import json
import random
import shutil
import socket
import sqlite3
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("tinker")

from ajet.read.episode_reader import EpisodeReader
from ajet.serve.tinker.futures import Futures
from ajet.serve.tinker.journal import Journal
from ajet.serve.tinker.served import KEPT_SNAPSHOTS
from tests.serve.tinker.server_process import MODEL, ServerProcess, serving
from tests.serve.tinker.wire_client import WireClient

IDS = [16, 17, 220, 10, 220, 20, 220, 28, 220, 16, 22]  # 12 + 5 = 17


class RestartedServer:
    """A server of which a copy starts from its files as they are at one moment, as after a kill."""

    def __init__(self, folder):
        self._folder, self._copies = folder, 0

    @contextmanager
    def first(self):
        with serving(self._folder) as address:
            yield WireClient(address)

    @contextmanager
    def restarted(self, client, change=lambda run: None):
        """Yields the same client, of a server that starts from the files of now after `change` of
        the run folder."""
        self._copies += 1
        copy = self._folder.with_name(f"copy-{self._copies}")
        shutil.copytree(self._folder, copy)
        change(copy / "tinker" / "tinker")
        with serving(copy) as address:
            yield client.at(address)

    def run(self):
        """Returns the folder of the one training run, in the latest copy."""
        copy = self._folder.with_name(f"copy-{self._copies}")
        (run,) = copy.glob("tinker/tinker/*-train-*")
        return run


@pytest.fixture
def server(tmp_path):
    return RestartedServer(tmp_path / "first")


def step(client, model, seq_id):
    """A forward_backward and an optim_step; returns the loss."""
    loss = client.forward_backward(model, seq_id, IDS)
    client.answer(client.optim_step(model, seq_id + 1))
    return client.loss(loss)


def changed(*statements):
    """Returns what takes back what a kill may have prevented from being written."""

    def change(run):
        with sqlite3.connect(next(run.glob("journal-*.sqlite"))) as journal:
            for statement in statements:
                assert journal.execute(statement).rowcount == 1

    return change


@pytest.mark.parametrize("rank", [4, 0])
def test_a_restarted_server_has_models_gradients_and_answers(server, rank):
    with server.first() as client:
        model = client.create_model(MODEL, rank=rank)
        first, second = step(client, model, 1), step(client, model, 3)
        half = client.forward_backward(model, 5, IDS)  # gradients that no checkpoint has
        answer = client.answer(half)
        with server.restarted(client) as again:
            assert again.post("get_info", model_id=model)["is_lora"] == bool(rank)
            assert again.answer(half) == answer
            assert again.loss(again.forward_backward(model, 3, IDS)) == second < first
            restarted = again.answer(again.optim_step(model, 6)), step(again, model, 7)
        assert restarted == (client.answer(client.optim_step(model, 6)), step(client, model, 7))


def test_what_was_acknowledged_and_not_begun_is_computed(server):
    with server.first() as client:
        model = client.create_model(MODEL)
        step(client, model, 1)
        client.answer(client.forward_backward(model, 3, IDS))
        later = client.forward_backward(model, 5, IDS)  # waits for 4
        with server.restarted(client) as again:
            again.answer(again.optim_step(model, 4))
            restarted = again.answer(later)
        client.answer(client.optim_step(model, 4))
        assert client.answer(later) == restarted


def test_a_step_in_a_checkpoint_whose_answer_was_not_written_is_not_made_again(server):
    with server.first() as client:
        model = client.create_model(MODEL)
        client.answer(client.forward_backward(model, 1, IDS))
        future = client.optim_step(model, 2)
        answer = client.answer(future)
        lost = changed(f"DELETE FROM answers WHERE id = '{model}:2'")
        with server.restarted(client, lost) as again:
            assert again.answer(again.optim_step(model, 2)) == answer
            restarted = step(again, model, 3)
        assert step(client, model, 3) == restarted


def test_a_damaged_checkpoint_is_replaced_by_the_one_before(server):
    def damage(run):
        newest = max(run.glob("*/resume/step_*"))
        (newest / "model.safetensors").write_bytes(b"")

    with server.first() as client:
        model = client.create_model(MODEL)
        for number in range(4):
            step(client, model, 1 + 2 * number)
        with server.restarted(client, damage) as again:
            restarted = step(again, model, 9)
        assert step(client, model, 9) == restarted


def test_each_step_is_recorded_once(server):
    def recorded(run):
        with EpisodeReader(run / "episodes.sqlite") as reader:
            ids = sorted(row.episode_id for row in reader.list())
        rows = [json.loads(line) for line in (run / "logs" / "metrics.jsonl").open()]
        return ids, [(row["step"], row["update/loss"]) for row in rows]

    with server.first() as client:
        model = client.create_model(MODEL)
        losses = [step(client, model, 1 + 2 * number) for number in range(3)]
        client.answer(client.forward_backward(model, 7, IDS))
        with server.restarted(client) as again:
            again.answer(again.optim_step(model, 8))
            losses.append(step(again, model, 9))
    ids, steps = recorded(server.run())
    assert ids == [f"{number:06d}-train-0000-00" for number in range(1, 6)]
    assert [number for number, _ in steps] == [1, 2, 3, 4, 5]
    assert [loss for number, loss in steps if number != 4] == losses


def save(client, model, seq_id):
    fields = {"model_id": model, "seq_id": seq_id, "path": "mine"}
    return client.send("POST", "save_weights", json=fields).raise_for_status().json()


def test_a_checkpoint_whose_answer_was_not_written_is_not_in_its_own_way(server):
    with server.first() as client:
        model = client.create_model(MODEL)
        step(client, model, 1)
        path = client.answer(save(client, model, 3))["path"]
        body = json.dumps({"model_id": model, "seq_id": 3, "path": "mine"})
        lost = changed(
            f"DELETE FROM answers WHERE id = '{model}:3'",
            f"UPDATE requests SET path = 'save_weights', body = '{body}' WHERE id = '{model}:3'",
        )
        with server.restarted(client, lost) as again:
            assert again.answer(save(again, model, 3))["path"] == path
            refused = again.answer(save(again, model, 4))
            assert "exists already" in refused["error"]


def test_an_evaluation_leaves_its_place_and_not_its_data(server):
    def size(run):
        with sqlite3.connect(next(run.glob("journal-*.sqlite"))) as journal:
            sizes.extend(journal.execute("SELECT length(body) FROM requests ORDER BY number"))

    sizes = []
    with server.first() as client:
        model = client.create_model(MODEL)
        evaluation = client.forward_backward(model, 1, IDS, forward_only=True)
        answer = client.answer(evaluation)
        client.answer(client.forward_backward(model, 2, IDS))
        with server.restarted(client, size) as again:
            assert again.answer(evaluation) == answer
            restarted = again.answer(again.optim_step(model, 3))
        assert restarted == client.answer(client.optim_step(model, 3))
    (evaluated,), (trained,) = sizes
    assert evaluated == 0 < trained


def test_a_checkpoint_that_was_deleted_does_not_come_back(server):
    with server.first() as client:
        model = client.create_model(MODEL)
        client.answer(save(client, model, 1))
        client.send("DELETE", f"training_runs/{model}/checkpoints/weights/mine").raise_for_status()
        with server.restarted(client) as again:
            step(again, model, 2)
            found = again.send("GET", f"training_runs/{model}/checkpoints").json()
            assert found == {"checkpoints": []}


def test_a_full_disk_is_an_answer(tmp_path):
    async def ask():
        journal = Journal(tmp_path / "journal.sqlite")
        futures = Futures(journal)

        async def work():
            return b"1" * (1 << 20)

        journal._file.execute("PRAGMA max_page_count = 20")
        futures.start("session:1", work)
        return await futures.retrieve("session:1", 5)

    answer = asyncio.run(ask())
    assert b"cannot be written: database or disk is full" in answer.body


def snapshot(client, model, seq_id, number):
    request = {"model_id": model, "seq_id": seq_id, "sampling_session_seq_id": number}
    return client.answer(client.post("save_weights_for_sampler", **request))["sampling_session_id"]


def tokens(client, sampler, seq_id):
    reply = client.sample(sampler, seq_id, IDS[:4], 4, max_tokens=8, stop=[])
    return [np.frombuffer(sequence.tokens, np.int32).tolist() for sequence in reply.sequences]


def test_samplers_go_on_with_their_weights_and_seeds(server):
    with server.first() as client:
        model = client.create_model(MODEL)
        step(client, model, 1)
        sampler = snapshot(client, model, 3, 0)
        step(client, model, 4)
        first = tokens(client, sampler, 0)
        with server.restarted(client) as again:
            assert tokens(again, sampler, 0) == first  # the stored answer
            restarted = tokens(again, sampler, 1)
        assert tokens(client, sampler, 1) == restarted != first


def test_a_sample_that_was_interrupted_is_drawn_again(tmp_path):
    with serving(tmp_path) as address:
        client = WireClient(address)
        fields = {"session_id": client.session_id, "sampling_session_seq_id": 0}
        sampler = client.post("create_sampling_session", **fields)["sampling_session_id"]
        prompt = {"chunks": [{"tokens": IDS}]}
        request = {"sampling_session_id": sampler, "seq_id": 0, "prompt": prompt}
        params = {"max_tokens": 240, "stop": []}
        future = client.post("asample", **request, num_samples=8, sampling_params=params)
    with serving(tmp_path) as address:
        assert isinstance(client.at(address).answer(future), bytes)


def test_snapshots_without_a_name_are_dropped_one_by_one(server):
    with server.first() as client:
        model = client.create_model(MODEL)
        samplers = [snapshot(client, model, n + 1, n) for n in range(KEPT_SNAPSHOTS + 1)]
        future = client.post(
            "asample",
            sampling_session_id=samplers[0],
            seq_id=0,
            prompt={"chunks": [{"tokens": IDS}]},
            sampling_params={},
        )
        assert "these weights are gone" in client.answer(future)["error"]
        assert tokens(client, samplers[1], 0)


def test_a_session_that_has_ended_leaves_its_checkpoints_alone(tmp_path):
    with serving(tmp_path) as address:
        client = WireClient(address)
        model = client.create_model(MODEL)
        client.answer(save(client, model, 1))
        snapshot(client, model, 2, 0)
        client.send("POST", f"sessions/{client.session_id}/finish").raise_for_status()
    with serving(tmp_path) as address:
        response = client.at(address).send("POST", "get_info", json={"model_id": model})
        assert response.status_code == 404
    (run,) = tmp_path.glob("tinker/tinker/*-train-*")
    left = {path.name for path in run.iterdir()}
    assert left.isdisjoint({"resume", "snapshots"}) and {"weights", "run.json"} <= left


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def learn(address, num_steps):
    """Trains with rewards as a script of the SDK does, and saves the weights."""
    import tinker
    from tinker import types

    service = tinker.ServiceClient(base_url=address, api_key="tml-test")
    trainer = service.create_lora_training_client(base_model=MODEL, rank=8)
    trainer = trainer.result() if hasattr(trainer, "result") else trainer
    prompt, zeros = IDS[:8], [0.0] * 7
    for _ in range(num_steps):
        sampler = trainer.save_weights_and_get_sampling_client()
        sampler = sampler.result() if hasattr(sampler, "result") else sampler
        params = types.SamplingParams(max_tokens=4, stop=[])
        reply = sampler.sample(types.ModelInput.from_ints(prompt), 8, params).result()
        rewards = [float(np.mean(np.array(s.tokens) == IDS[-1])) for s in reply.sequences]
        data = []
        for sequence, reward in zip(reply.sequences, rewards, strict=True):
            ids = prompt + list(sequence.tokens)
            advantages = zeros + [reward - np.mean(rewards)] * len(sequence.tokens)
            inputs = {
                "target_tokens": np.array(ids[1:]),
                "logprobs": np.array(zeros + list(sequence.logprobs), np.float32),
                "advantages": np.array(advantages, np.float32),
            }
            model_input = types.ModelInput.from_ints(ids[:-1])
            data.append(types.Datum(model_input=model_input, loss_fn_inputs=inputs))
        trainer.forward_backward(data, "importance_sampling")
        trainer.optim_step(types.AdamParams(learning_rate=0.02)).result()
    trainer.save_state("end").result()
    service.holder.close()  # else its heartbeats go on after the server's end, and warn


def weights(root):
    (file,) = root.glob("*/weights/end/step_*/model.safetensors")
    return load_file(file)


def test_a_script_of_the_sdk_does_not_notice_a_kill(tmp_path):
    """It samples without a seed: also what a server draws is the same after a kill.
    benchmarks/tinker_kills.py kills it twenty times."""
    folder = tmp_path / "killed"
    folder.mkdir()
    server = ServerProcess(folder, free_port())
    script = threading.Thread(target=learn, args=(server.address, 8))
    script.start()
    script.join(random.Random(0).uniform(0.1, 1.0))
    assert script.is_alive()
    server.kill()
    server.start()
    script.join(120)
    server.kill()
    with serving(tmp_path / "alone") as address:
        learn(address, 8)
    killed, alone = weights(server.root), weights(tmp_path / "alone/tinker/tinker")
    assert all(torch.equal(killed[name], tensor) for name, tensor in alone.items())
