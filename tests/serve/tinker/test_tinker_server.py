"""The server over HTTP: order, repetitions, refusals, and a script with the real SDK."""

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import typer
from starlette.testclient import TestClient
from transformers import AutoModelForCausalLM

from ajet.cli.export import export
from ajet.cli.serve import serve
from ajet.core.errors import ConfigError
from ajet.core.text.install import install_command
from ajet.serve.tinker import futures as futures_module
from ajet.serve.tinker import service as service_module
from ajet.serve.tinker.server import make_app
from ajet.serve.tinker.wire import schema
from tests.serve.tinker.server_process import MODEL, serving
from tests.serve.tinker.wire_client import WireClient

IDS = [16, 17, 220, 10, 220, 20, 220, 28, 220, 16, 22]  # 12 + 5 = 17


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def address(folder):
    pytest.importorskip("tinker")
    with serving(folder) as address:
        yield address


@pytest.fixture
def client(address):
    return WireClient(address)


def test_a_repeated_step_changes_nothing(client):
    once, twice = client.create_model(MODEL), client.create_model(MODEL)
    for model in (once, twice):
        client.answer(client.forward_backward(model, 1, IDS))
        first = client.optim_step(model, 2)
        if model == twice:
            client.answer(first)
            assert client.optim_step(model, 2) == first
            assert client.forward_backward(model, 1, IDS)["request_id"] == f"{model}:1"
        client.answer(first)
    losses = [client.loss(client.forward_backward(model, 3, IDS)) for model in (once, twice)]
    assert losses[0] == losses[1]


def test_requests_run_in_the_order_of_their_numbers_however_they_arrive(client):
    model, mixed = client.create_model(MODEL), client.create_model(MODEL)
    futures = [client.forward_backward(model, 1, IDS), client.optim_step(model, 2)]
    futures += [client.forward_backward(model, 3, IDS)]
    wanted = [client.loss(futures[0]), client.loss(futures[2])]
    last = client.forward_backward(mixed, 3, IDS)
    client.optim_step(mixed, 2)
    first = client.forward_backward(mixed, 1, IDS)
    assert [client.loss(first), client.loss(last)] == wanted
    assert wanted[1] < wanted[0]


def test_a_refused_request_keeps_its_place_and_the_step_after_it_is_not_made(client):
    model = client.create_model(MODEL)
    before = client.loss(client.forward_backward(model, 1, IDS, forward_only=True))
    refused = client.forward_backward(model, 2, IDS, loss="stable_reinforce")
    step, again = client.optim_step(model, 3), client.forward_backward(model, 4, IDS)
    error = client.answer(refused)
    assert error["category"] == "user" and "importance_sampling" in error["error"]
    assert "no step was made" in client.answer(step)["error"]
    assert client.loss(again) == before
    wrong = client.optim_step(model, 5, beta1=2.0)
    assert "adam_params.beta1" in client.answer(wrong)["error"]
    client.answer(client.optim_step(model, 6))
    assert client.loss(client.forward_backward(model, 7, IDS)) < before


def test_requests_that_wait_are_limited_in_bytes(client, monkeypatch):
    model = client.create_model(MODEL)
    monkeypatch.setattr(futures_module, "MAX_WAITING_BYTES", 300)  # one has 200 to 250
    early = client.forward_backward(model, 2, IDS)  # waits for 1
    assert "bytes of this model's requests wait" in client.forward_backward(model, 3, IDS)["error"]
    client.answer(client.forward_backward(model, 1, IDS))  # what they wait for is taken
    client.answer(early)
    client.answer(client.forward_backward(model, 3, IDS))


def test_a_model_without_an_adapter_trains_all_weights(client):
    model = client.create_model(MODEL, rank=0)
    assert client.post("get_info", model_id=model)["is_lora"] is False
    first = client.loss(client.forward_backward(model, 1, IDS))
    client.answer(client.optim_step(model, 2, learning_rate=0.001))
    assert client.loss(client.forward_backward(model, 3, IDS)) < first


def make_sampler(client):
    fields = {"session_id": client.session_id, "sampling_session_seq_id": 0, "base_model": MODEL}
    return client.post("create_sampling_session", **fields)["sampling_session_id"]


def test_a_seed_fixes_each_of_several_samples(client):
    sampler = make_sampler(client)

    def tokens(seq_id, seed):
        reply = client.sample(sampler, seq_id, IDS[:4], 3, max_tokens=8, seed=seed, stop=[])
        return [np.frombuffer(sequence.tokens, np.int32).tolist() for sequence in reply.sequences]

    first = tokens(0, 5)
    assert first == tokens(1, 5) and len({tuple(ids) for ids in first}) > 1
    assert tokens(2, 6) != first
    assert tokens(0, 7) == first  # a repeated number has the answer of the first request


def test_samplers_that_are_closed_at_the_same_time_fail_no_request(client):
    model, samplers = client.create_model(MODEL), []
    for number in range(10):
        client.answer(client.forward_backward(model, 3 * number + 1, IDS))
        client.answer(client.optim_step(model, 3 * number + 2))
        saved = {"model_id": model, "seq_id": 3 * number + 3, "sampling_session_seq_id": number}
        samplers.append(client.answer(client.post("save_weights_for_sampler", **saved)))
    prompt = {"chunks": [{"type": "encoded_text", "tokens": IDS[:4]}]}
    futures = [
        client.post(
            "asample",
            sampling_session_id=sampler["sampling_session_id"],
            seq_id=number,
            prompt=prompt,
            sampling_params={"max_tokens": 3, "seed": 1},
        )
        for number in range(6)
        for sampler in samplers[-8:]
    ]
    assert all(isinstance(client.answer(future), bytes) for future in futures)


def test_a_sample_ends_at_a_stop_and_at_the_end_of_the_model(client):
    sampler = make_sampler(client)
    types = schema()
    whole = client.sample(sampler, 0, IDS[:4], max_tokens=12, temperature=0.0, stop=[])
    ids = np.frombuffer(whole.sequences[0].tokens, np.int32).tolist()
    assert len(ids) == 12 and whole.sequences[0].stop_reason == types.STOP_REASON_LENGTH
    cut = client.sample(sampler, 1, IDS[:4], max_tokens=12, temperature=0.0, stop=[ids[3]])
    at = ids.index(ids[3]) + 1
    assert np.frombuffer(cut.sequences[0].tokens, np.int32).tolist() == ids[:at]
    assert cut.sequences[0].stop_reason == types.STOP_REASON_STOP


@pytest.mark.parametrize(
    ("path", "fields", "status", "message"),
    [
        ("get_info", {"model_id": "abc:train:0"}, 404, "no model"),
        ("retrieve_future", {"request_id": "abc"}, 404, "no request"),
        ("session_heartbeat", {"session_id": "abc"}, 410, "no session"),
        ("weights_info", {"tinker_path": "tinker://../../weights/x"}, 404, "no checkpoint"),
        ("optim_step", {"model_id": 5}, 400, "model_id: Input should be a valid string"),
        ("create_custom_loss", {}, 404, "not served"),
    ],
)
def test_a_wrong_request_gets_one_line(client, path, fields, status, message):
    response = client.send("POST", path, json=fields)
    assert response.status_code == status
    body = response.json()
    assert message in body["error"] and body["category"] == "user"


def test_models_that_are_not_served_are_refused(client):
    wish = {"session_id": client.session_id, "model_seq_id": 0, "lora_config": {"rank": 4}}
    for change, message in (
        ({"base_model": "Qwen/Qwen3-8B"}, "only 'embedded:math'"),
        ({"optimizer_config": {"type": "dimuon"}}, "optimizer_config.type is not served"),
        ({"lora_config": {"rank": 0}}, "lora_config.rank: Input should be greater"),
        ({"lora_config": {"rank": 4, "alpha": 3}}, "lora_config.alpha is not served"),
        ({"quantization": 4}, "quantization is not served"),
    ):
        response = client.send("POST", "create_model", json=wish | change)
        assert response.status_code == 400 and message in response.json()["error"]


def test_models_that_memory_would_not_hold_are_refused(client, monkeypatch):
    client.create_model(MODEL)
    monkeypatch.setattr(service_module, "MEMORY_SHARE", 1e-9)
    wish = {"session_id": client.session_id, "model_seq_id": 5}
    answer = client.answer(client.post("create_model", lora_config={"rank": 4}, **wish))
    assert "lower the rank, or unload models" in answer["error"]


def test_sessions_have_a_limit(client, monkeypatch):
    monkeypatch.setattr(service_module, "MAX_SESSIONS", 1)
    response = client.send("POST", "create_session", json={})
    assert response.status_code == 429 and "finish some" in response.json()["error"]


def test_bodies_that_are_no_messages_are_refused(client):
    model = client.create_model(MODEL)
    assert client.send_message(b"\xff\xff\xff").status_code == 400
    compressed = client.send_message(b"", **{"content-encoding": "zstd"})
    assert compressed.status_code == 400 and "compressed" in compressed.json()["error"]
    types = schema()
    message = types.ForwardBackwardRequest(model_id=model, seq_id=1, loss_fn="cross_entropy")
    tensor = message.data.add().loss_fn_inputs["target_tokens"]
    # A few bytes that stand for 10^12 numbers.
    tensor.CopyFrom(types.Tensor(sparse_csr=types.SparseCsr(), shape=[10**6, 10**6], dtype=2))
    answer = client.answer(client.send_message(message.SerializeToString()).json())
    assert "sparse" in answer["error"]


def test_pages_of_web_sites_are_refused(client):
    for headers in ({"origin": "https://example.com"}, {"host": "example.com"}):
        response = client.send("POST", "create_session", json={}, headers=headers)
        assert response.status_code == 403


def test_every_route_wants_the_servers_key():
    service = SimpleNamespace(posts={"asample": None}, store=None)
    app = make_app(service, "secret", on_loopback=True)
    guest = TestClient(app, base_url="http://127.0.0.1", headers={"x-api-key": "tml-other"})
    asked = [(method, route.path) for route in app.routes for method in route.methods]
    assert len(asked) > 10
    for method, path in asked:
        assert guest.request(method, re.sub(r"\{\w+\}", "a", path)).status_code == 401


def test_without_the_sdks_package_one_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tinker", None)
    monkeypatch.delitem(sys.modules, "tinker.proto", raising=False)
    with pytest.raises(ConfigError, match=re.escape(install_command("tinker"))):
        schema()


@pytest.mark.parametrize("options", [{"tinker": True}, {"model": MODEL}, {}])
def test_the_command_says_what_is_missing(options):
    with pytest.raises(typer.BadParameter, match="--tinker"):
        serve(**options)


@pytest.mark.parametrize("rank", [4, 0])
def test_what_a_client_saved_is_exported_as_a_model(client, folder, tmp_path, rank):
    model = client.create_model(MODEL, rank=rank)
    client.answer(client.forward_backward(model, 1, IDS))
    client.answer(client.optim_step(model, 2))
    saved = client.send(
        "POST", "save_weights", json={"model_id": model, "seq_id": 3, "path": "learnt"}
    )
    assert "path" in client.answer(saved.json())
    loss = client.loss(client.forward_backward(model, 4, IDS, forward_only=True))
    source = folder / "tinker/tinker" / model.replace(":", "-") / "weights/learnt"
    export(source, tmp_path / "trained")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "trained")
    ids = torch.tensor([IDS])
    mean = float(exported(ids, labels=ids).loss.detach())
    assert mean * (len(IDS) - 1) == pytest.approx(loss, rel=1e-4)
    if rank:
        export(source, tmp_path / "adapter", adapter=True)
        assert (tmp_path / "adapter/adapter_model.safetensors").is_file()


@pytest.fixture
def service(address):
    import tinker

    service = tinker.ServiceClient(base_url=address, api_key="tml-test")
    yield service
    service.holder.close()  # else its heartbeats go on after the server's end, and warn


def client_of(future):
    """Newer SDKs return a future of a client where older ones return the client."""
    return future.result() if hasattr(future, "result") else future


def datum(types, ids, **tensors):
    inputs = {"target_tokens": np.array(ids[1:])}
    inputs |= {name: np.array(values, np.float32) for name, values in tensors.items()}
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)


def test_a_script_of_the_sdk_learns_a_reply_and_finds_it_again(service):
    from tinker import types

    trainer = client_of(service.create_lora_training_client(base_model=MODEL, rank=8, seed=3))
    assert trainer.get_tokenizer().decode(IDS) == "12 + 5 = 17"
    example = datum(types, IDS, weights=[0.0] * 7 + [1.0] * 3)
    losses = []
    for _ in range(8):
        computed = trainer.forward_backward([example, example], "cross_entropy")
        trainer.optim_step(types.AdamParams(learning_rate=0.01)).result()
        losses.append(computed.result().metrics["loss:sum"])
    assert losses[-1] < 0.1 * losses[0]
    sampler = client_of(trainer.save_weights_and_get_sampling_client())
    reply = sampler.sample(
        types.ModelInput.from_ints(IDS[:8]), 1, types.SamplingParams(max_tokens=3, temperature=0)
    ).result()
    assert list(reply.sequences[0].tokens) == IDS[8:]
    # One forward pass of the trainer, of the sampler's scoring, and the sampled tokens agree.
    forward = trainer.forward([example], "cross_entropy").result()
    forward_logprobs = forward.loss_fn_outputs[0]["logprobs"].to_numpy()
    logprobs = sampler.compute_logprobs(types.ModelInput.from_ints(IDS)).result()
    np.testing.assert_allclose(logprobs[1:], forward_logprobs, atol=1e-5)
    np.testing.assert_allclose(reply.sequences[0].logprobs, forward_logprobs[7:], atol=1e-5)

    path = trainer.save_state("learnt").result().path
    saved = trainer.save_weights_for_sampler("learnt").result().path
    other = client_of(service.create_training_client_from_state_with_optimizer(path))
    for client in (trainer, other):
        client.forward_backward([example], "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=0.01)).result()
    ends = [c.forward([example], "cross_entropy").result().metrics for c in (trainer, other)]
    assert ends[0] == ends[1]
    again = client_of(service.create_sampling_client(model_path=saved))
    assert again.compute_logprobs(types.ModelInput.from_ints(IDS)).result() == logprobs


def test_a_script_of_the_sdk_raises_a_reward(service):
    from tinker import types

    trainer = client_of(service.create_lora_training_client(base_model=MODEL, rank=8, seed=3))
    prompt, wanted, rewards = IDS[:8], IDS[-1], []
    for step in range(12):
        sampler = client_of(trainer.save_weights_and_get_sampling_client())
        params = types.SamplingParams(max_tokens=4, seed=step, stop=[])
        reply = sampler.sample(types.ModelInput.from_ints(prompt), 16, params).result()
        # The reward is the share of tokens that are "7".
        earned = [np.mean(np.array(s.tokens) == wanted) for s in reply.sequences]
        rewards.append(np.mean(earned))
        zeros, data = [0.0] * (len(prompt) - 1), []
        for sequence, reward in zip(reply.sequences, earned, strict=True):
            ids = prompt + list(sequence.tokens)
            advantages = zeros + [reward - rewards[-1]] * len(sequence.tokens)
            logprobs = zeros + list(sequence.logprobs)
            data.append(datum(types, ids, logprobs=logprobs, advantages=advantages))
        trainer.forward_backward(data, "importance_sampling")
        trainer.optim_step(types.AdamParams(learning_rate=0.02)).result()
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.3


def test_a_loss_of_the_clients_has_its_gradient(service):
    from tinker import types

    trainer = client_of(service.create_lora_training_client(base_model=MODEL, rank=8, seed=3))
    example = datum(types, IDS, weights=[1.0] * 10)

    def squares(data, logprobs):
        loss = sum((part**2).sum() for part in logprobs)
        return loss, {"first": float(logprobs[0][0])}

    losses = []
    for _ in range(5):
        result = trainer.forward_backward_custom([example], squares)
        trainer.optim_step(types.AdamParams(learning_rate=0.01)).result()
        losses.append(result.result().metrics["loss:sum"])
    assert losses[-1] < 0.7 * losses[0]


def test_checkpoints_are_listed_and_deleted(service):
    trainer = client_of(service.create_lora_training_client(base_model=MODEL, rank=4))
    path = trainer.save_state("first").result().path
    rest = service.create_rest_client()
    found = rest.list_checkpoints(trainer.model_id).result().checkpoints
    assert [checkpoint.tinker_path for checkpoint in found] == [path]
    assert rest.get_weights_info_by_tinker_path(path).result().lora_rank == 4
    runs = rest.list_training_runs().result().training_runs
    assert trainer.model_id in {run.training_run_id for run in runs}
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert not rest.list_checkpoints(trainer.model_id).result().checkpoints
