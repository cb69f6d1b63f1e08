"""Hostile clients harm only themselves: after each attack an honest client's next step has the bits
of a twin that was trained before any attack, and the server has not grown.
"""

import json
import select
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from ajet.core.workflow.gateway.server import MAX_BODY_BYTES
from ajet.serve.tinker.futures import MAX_EARLY
from ajet.serve.tinker.losses import LOSSES
from ajet.serve.tinker.messages import MAX_SAMPLES
from ajet.serve.tinker.wire import PROTOBUF, schema
from tests.serve.tinker.wire_client import WireClient

pytest.importorskip("tinker")

MODEL = "embedded:math"
IDS = [16, 17, 220, 10, 220, 20, 220, 28, 220, 16, 22]  # 12 + 5 = 17
CONTEXT = 256
NUM_STEPS = 110
MAX_GROWTH = 1 << 30
"""Bytes that attacks may add to the server's memory, in all. The largest body has 32 MiB."""


class Server:
    def __init__(self, folder):
        command = [sys.executable, "-m", "ajet.cli.launcher", "serve", "--tinker"]
        sets = ["ajet.serve.port=auto", f"ajet.rollout.max_model_len={CONTEXT}"]
        options = ["--model", MODEL, "--exp-dir", str(folder), "ajet.model.device=cpu", *sets]
        self.process = subprocess.Popen(
            [*command, *options], cwd=folder, stdout=subprocess.PIPE, text=True
        )
        assert select.select([self.process.stdout], [], [], 120)[0]
        line = self.process.stdout.readline()
        self.address = line.partition("TINKER_BASE_URL=")[2].partition(",")[0]
        self.store = Path(folder)

    def memory(self):
        return psutil.Process(self.process.pid).memory_info().rss


class Honest:
    """Trains one model by a step at a time."""

    def __init__(self, address):
        self._client = WireClient(address)
        self._model = self._client.create_model(MODEL, seed=7)
        self.num_steps = 0

    def step(self):
        """Returns the bytes of the answer, which has the loss and all log-probabilities."""
        at = 2 * self.num_steps + 1
        self.num_steps += 1
        answer = self._client.answer(self._client.forward_backward(self._model, at, IDS))
        metrics = self._client.answer(self._client.optim_step(self._model, at + 1))
        assert "metrics" in metrics
        return answer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("hostile"))
    yield server
    server.process.terminate()
    server.process.wait(20)


@pytest.fixture(scope="module")
def honest(server):
    twin = Honest(server.address)
    wanted = [twin.step() for _ in range(NUM_STEPS)]
    return Honest(server.address), wanted, server.memory()


@pytest.fixture(autouse=True)
def unharmed(server, honest):
    yield
    client, wanted, memory = honest
    number = client.num_steps
    assert client.step() == wanted[number]
    assert server.memory() < memory + MAX_GROWTH
    assert server.process.poll() is None


class Hostile(WireClient):
    """A client with a model, whose requests are refused."""

    def __init__(self, address):
        super().__init__(address)
        self.model = self.create_model(MODEL)
        self.seq_id = 0

    def next_id(self):
        self.seq_id += 1
        return self.seq_id

    def computed(self, data, loss="cross_entropy", config=None):
        """Sends data, pairs of token ids and tensors, and returns the answer."""
        types = schema()
        message = types.ForwardBackwardRequest(
            model_id=self.model, seq_id=self.next_id(), loss_fn=loss
        )
        message.loss_fn_config.update(config or {})
        for ids, tensors in data:
            datum = message.data.add()
            datum.model_input.add().encoded_text.tokens = np.array(ids, np.int32).tobytes()
            for name, value in tensors.items():
                datum.loss_fn_inputs[name].CopyFrom(value)
        return self.answer(self.send_message(message.SerializeToString()).json())

    def refusal(self, data, loss="cross_entropy", config=None):
        """Sends data that must be refused, and returns the error."""
        answer = self.computed(data, loss, config)
        assert isinstance(answer, dict) and answer["category"] == "user", answer
        step = self.answer(self.optim_step(self.model, self.next_id()))
        assert "no step was made" in step["error"]
        return answer["error"]

    def save(self, name):
        fields = {"model_id": self.model, "seq_id": self.next_id(), "path": name}
        return self.answer(self.send("POST", "save_weights", json=fields).json())

    def error_of(self, method, path, **arguments):
        """Returns the error of a request that is refused at once."""
        response = self.send(method, path, **arguments)
        assert 400 <= response.status_code < 500, response.text[:500]
        assert response.json()["category"] == "user"
        return response.json()["error"]


@pytest.fixture
def hostile(server, honest):
    return Hostile(server.address)


def tensor(values, dtype=np.float32, shape=None):
    types, array = schema(), np.asarray(values)
    number = types.DTYPE_INT64 if dtype == np.int64 else types.DTYPE_FLOAT32
    shape = array.shape if shape is None else shape
    return types.Tensor(dense=array.astype(dtype).tobytes(), dtype=number, shape=shape)


def sparse(shape, starts=(0, 0), columns=(), values=(), dtype=np.int64):
    types = schema()
    number = types.DTYPE_INT64 if dtype == np.int64 else types.DTYPE_FLOAT32
    csr = types.SparseCsr(
        crow_indices=np.array(starts, np.int64).tobytes(),
        col_indices=np.array(columns, np.int64).tobytes(),
        values=np.array(values, dtype).tobytes(),
    )
    return types.Tensor(sparse_csr=csr, shape=shape, dtype=number)


NUM = len(IDS) - 1
ONES = [1.0] * NUM
GOOD = {"target_tokens": tensor(IDS[1:], np.int64)}
INPUTS = ("weights", "logprobs", "advantages", "sequence_ratio_mask")


@pytest.mark.parametrize("loss", LOSSES)
def test_numbers_that_are_not_finite_are_refused_in_every_tensor_and_setting(hostile, loss):
    inputs = GOOD | {name: tensor(ONES) for name in LOSSES[loss].inputs}
    config = {name: 1.0 for name in LOSSES[loss].config}
    for number in (np.nan, np.inf, -np.inf):
        for name in LOSSES[loss].inputs:
            values = [number, *ONES[1:]]
            for bad in (
                tensor(values),
                sparse((NUM, 1), np.arange(NUM + 1), [0] * NUM, values, np.float32),
            ):
                data = [(IDS[:-1], inputs | {name: bad})]
                assert "not finite" in hostile.refusal(data, loss, config)
        for name in config:
            data = [(IDS[:-1], inputs)]
            assert f"{name} is" in hostile.refusal(data, loss, config | {name: number})


BIG = 1 << 40
HALF = schema().Tensor(dense=b"\x01" * 81, dtype=schema().DTYPE_INT64, shape=[NUM])
DATA = {
    "no data": [],
    "no tokens": [([], {"target_tokens": tensor([], np.int64)})],
    "no tensor": [(IDS[:-1], {})],
    "a long sequence": [([1] * (CONTEXT + 1), {"target_tokens": tensor([1] * (CONTEXT + 1))})],
    "tokens below 0": [([-1] * NUM, GOOD)],
    "tokens beyond": [([2**31 - 1] * NUM, GOOD)],
    "targets below 0": [(IDS[:-1], {"target_tokens": tensor([-1] * NUM, np.int64)})],
    "targets beyond": [(IDS[:-1], {"target_tokens": tensor([2**62] * NUM, np.int64)})],
    "targets that are floats": [(IDS[:-1], {"target_tokens": tensor(IDS[1:])})],
    "targets of another length": [(IDS, GOOD)],
    "no targets at a position": [(IDS[:-1], {"target_tokens": tensor([], np.int64, [NUM, 0])})],
    "three dimensions": [(IDS[:-1], {"target_tokens": tensor(IDS[1:], np.int64, [NUM, 1, 1])})],
    "a million dimensions": [(IDS[:-1], {"target_tokens": tensor([], np.int64, [BIG] * 10**6)})],
    "a shape below 0": [(IDS[:-1], {"target_tokens": tensor(IDS[1:], np.int64, [-1, -NUM])})],
    "a shape beyond": [(IDS[:-1], {"target_tokens": tensor(IDS[1:], np.int64, [BIG, BIG])})],
    "half a number": [(IDS[:-1], {"target_tokens": HALF})],
    "a sparse shape beyond": [(IDS[:-1], {"target_tokens": sparse([BIG, BIG])})],
    "a sparse shape below 0": [(IDS[:-1], {"target_tokens": sparse([-1, 5])})],
    "row starts that fall": [(IDS[:-1], {"target_tokens": sparse([2, 5], [0, 3, 1], [0], [1])})],
    "row starts beyond": [(IDS[:-1], {"target_tokens": sparse([1, 5], [0, BIG], [0], [1])})],
    "columns below 0": [(IDS[:-1], {"target_tokens": sparse([1, 5], [0, 1], [-1], [1])})],
    "columns beyond": [(IDS[:-1], {"target_tokens": sparse([1, 5], [0, 1], [BIG], [1])})],
    "weights of another shape": [(IDS[:-1], GOOD | {"weights": tensor([[1.0]] * NUM)})],
    "an unknown tensor": [(IDS[:-1], GOOD | {"../\0": tensor(ONES)})],
    "a thousand sparse tensors": [([1], {"target_tokens": sparse([1, 1 << 24])})] * 1000,
}


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_data_that_cannot_be_computed_is_refused(hostile, data):
    assert len(hostile.refusal(data)) < 1000


def test_much_data_is_computed(hostile):
    one = {"target_tokens": tensor([1], np.int64)}
    answer = hostile.computed([([16], one)] * 20_000)
    assert isinstance(answer, bytes)
    many = {"target_tokens": tensor([[1] * 500_000], np.int64)}
    assert isinstance(hostile.computed([([16], many)]), bytes)


def varint(number):
    encoded = b""
    while number > 127:
        encoded += bytes([number & 127 | 128])
        number >>= 7
    return encoded + bytes([number])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def nested(depth):
    body = b""
    for _ in range(depth):
        body = field(1, body)  # a message's data within themselves
    return body


BODIES = {
    "nothing": b"",
    "noise": bytes(range(256)) * 100,
    "deep": nested(2000),
    "groups": b"\x0b" * 10**6,
    "a length beyond": b"\x0a\xff\xff\xff\xff\x0f",
    "a length below 0": b"\x0a" + b"\xff" * 9 + b"\x01",
    "unknown fields": field(9999, b"x" * 10**6) * 10,
    "text that is not UTF-8": field(2, b"\xff\xfe"),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_bodies_that_are_no_request_are_refused(hostile, body):
    headers = {"content-type": PROTOBUF}
    assert hostile.error_of("POST", "forward_backward", content=body, headers=headers)


def test_a_message_that_is_cut_anywhere_is_refused_or_computed_as_it_stands(hostile):
    types = schema()
    message = types.ForwardBackwardRequest(
        model_id=hostile.model, loss_fn="cross_entropy", seq_id=1
    )
    datum = message.data.add()
    datum.model_input.add().encoded_text.tokens = np.array(IDS[:-1], np.int32).tobytes()
    datum.loss_fn_inputs["target_tokens"].CopyFrom(GOOD["target_tokens"])
    body = message.SerializeToString()
    for at in range(0, len(body), 3):
        response = hostile.send_message(body[:at])
        assert response.status_code in (200, 400, 404), response.text


@pytest.mark.parametrize("encoding", ["zstd", "gzip", "deflate", "br", "identity, gzip"])
@pytest.mark.parametrize("path", ["forward_backward", "create_session", "asample"])
def test_compressed_bodies_are_never_expanded(hostile, path, encoding):
    import gzip

    bomb = gzip.compress(b"0" * 10**8)
    headers = {"content-encoding": encoding, "content-type": "application/json"}
    assert hostile.error_of("POST", path, content=bomb, headers=headers)


JSON = {
    "deep lists": b'{"tags": ' + b"[" * 10**6 + b"]" * 10**6 + b"}",
    "a number of many digits": b'{"user_metadata": {"a": ' + b"9" * 10**6 + b"}}",
    "NaN": b'{"user_metadata": {"a": NaN}}',
    "infinity": b'{"user_metadata": {"a": -Infinity}}',
    "not UTF-8": b'{"user_metadata": {"a": "\xff\xfe"}}',
    "a list": b"[]",
    "nothing": b"null",
    "cut": b'{"user_metadata": {"a": 1',
    "much about itself": json.dumps({"user_metadata": {"a": "x" * 10**6}}).encode(),
    "a long name": json.dumps({"display_name": "x" * 10**6}).encode(),
    "more than a body may have": b" " * (MAX_BODY_BYTES + 1),
}


@pytest.mark.parametrize("body", JSON.values(), ids=JSON)
def test_sessions_of_hostile_json_are_refused(hostile, body):
    assert len(hostile.error_of("POST", "create_session", content=body)) < 1000


def test_the_last_of_equal_keys_counts_and_odd_metadata_come_back(hostile):
    odd = {"\ud800 \0": "\ud800"}
    deep = json.loads(b'{"a":' * 900 + b"1" + b"}" * 900)
    for metadata in (odd, deep):
        about = {"user_metadata": metadata, "display_name": "\x1b[31m\0"}
        body = b'{"display_name": "a", ' + json.dumps(about).encode()[1:]
        session = hostile.send("POST", "create_session", content=body)
        answer = hostile.send("GET", f"sessions/{session.json()['session_id']}").json()
        assert answer["display_name"] == about["display_name"]
        assert answer["user_metadata"] == metadata


NUMBERS = [10**400, -(10**400), 2**63, 2**31, -1, 0.5, "1", None, True, [], {}, "\0"]


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("create_model", ("model_seq_id",)),
        ("create_model", ("lora_config", "rank")),
        ("create_model", ("lora_config", "seed")),
        ("create_sampling_session", ("sampling_session_seq_id",)),
        ("asample", ("seq_id",)),
        ("asample", ("num_samples",)),
        ("asample", ("topk_prompt_logprobs",)),
        ("asample", ("prompt", "chunks")),
        ("asample", ("prompt", "chunks", 0, "tokens", 0)),
        ("asample", ("sampling_params", "max_tokens")),
        ("asample", ("sampling_params", "seed")),
        ("asample", ("sampling_params", "stop")),
        ("asample", ("sampling_params", "temperature")),
        ("asample", ("sampling_params", "top_k")),
        ("asample", ("sampling_params", "top_p")),
        ("optim_step", ("seq_id",)),
        ("optim_step", ("adam_params", "learning_rate")),
        ("optim_step", ("adam_params", "beta1")),
        ("optim_step", ("adam_params", "eps")),
        ("optim_step", ("adam_params", "weight_decay")),
        ("optim_step", ("adam_params", "grad_clip_norm")),
        ("save_weights", ("path",)),
        ("load_weights", ("path",)),
    ],
    ids=lambda value: value if isinstance(value, str) else ".".join(map(str, value)),
)
def test_a_number_is_computed_with_or_refused_as_the_clients_mistake(hostile, path, place):
    seeds = iter(range(1, 100))
    for number in [*NUMBERS, float("nan"), float("inf"), 1e-300, 1e300]:
        seq_id = next(seeds)
        fields = {
            "create_model": {
                "session_id": hostile.session_id,
                "model_seq_id": 1000 + seq_id,
                "lora_config": {"rank": 2, "seed": 1},
            },
            "create_sampling_session": {"session_id": hostile.session_id},
            "asample": {
                "base_model": MODEL,
                "prompt": {"chunks": [{"type": "encoded_text", "tokens": IDS[:4]}]},
                "sampling_params": {"max_tokens": 2},
            },
            "optim_step": {"model_id": hostile.model, "seq_id": seq_id, "adam_params": {}},
            "save_weights": {"model_id": hostile.model, "seq_id": seq_id, "path": "x"},
            "load_weights": {
                "model_id": hostile.model,
                "seq_id": seq_id,
                "path": "x",
                "optimizer": True,
            },
        }[path]
        at = fields
        for name in place[:-1]:
            at = at[name]
        at[place[-1]] = number
        response = hostile.send("POST", path, content=json.dumps(fields))
        assert response.status_code in (200, 400, 404), response.text
        answer = response.json()
        if "request_id" in answer and is_in_turn(answer["request_id"], seq_id):
            answer = hostile.answer(answer)
        if isinstance(answer, dict) and "error" in answer:
            assert answer["category"] == "user", (number, answer)


def is_in_turn(request_id, seq_id):
    """Tells whether a request is answered without waiting for earlier ones."""
    return ":train:" not in request_id or request_id.endswith((f":{seq_id}", ":0"))


def test_a_request_that_cannot_be_drawn_fails_none_of_its_batch(hostile):
    sampled = {"max_tokens": 100, "seed": 1, "stop": []}
    wanted = tokens_of(sample(hostile, **sampled))
    fair = start_sample(hostile, **sampled)
    for odd in ({"temperature": 1e-300}, {"temperature": 1e300}, {"top_k": 2**70}):
        fields = asample(**sampled, **odd)
        assert hostile.error_of("POST", "asample", content=json.dumps(fields))
    for name, odd in (("temperature", 1e-4), ("temperature", 1e4), ("top_p", 1e-300)):
        sample(hostile, **sampled, **{name: odd})
    assert tokens_of(hostile.answer(fair)) == wanted


def tokens_of(answer):
    return [sequence.tokens for sequence in schema().SampleResponse.FromString(answer).sequences]


def asample(num_samples=1, prompt=IDS[:4], more=(), **params):
    return {
        "base_model": MODEL,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(prompt)}]},
        "num_samples": num_samples,
        "sampling_params": params,
        **dict(more),
    }


def start_sample(client, *args, **params):
    return client.post("asample", **asample(*args, **params))


def sample(client, *args, **params):
    answer = client.answer(start_sample(client, *args, **params))
    assert isinstance(answer, bytes), answer
    return answer


def test_samplers_serve_the_most_that_may_be_asked_for(hostile):
    types = schema()
    assert len(tokens_of(sample(hostile, MAX_SAMPLES, max_tokens=20, stop=[]))) == MAX_SAMPLES
    longest = CONTEXT - len(IDS[:4])
    assert tokens_of(sample(hostile, max_tokens=longest, stop=[]))
    too_many = hostile.answer(start_sample(hostile, max_tokens=longest + 1))
    assert "room" in too_many["error"]
    wish = {"prompt_logprobs": True, "topk_prompt_logprobs": 100}
    long = sample(hostile, 1, [16] * (CONTEXT - 1), wish, max_tokens=1)
    assert types.SampleResponse.FromString(long).topk_prompt_logprobs.k == 100
    for stop in ("x" * 10**6, ["x"] * 10**5, [1] * 10**5):
        fields = json.dumps(asample(max_tokens=2, stop=stop))
        assert "stop" in hostile.error_of("POST", "asample", content=fields)


def test_two_clients_that_number_their_samples_alike_get_their_own(server, hostile):
    other = WireClient(server.address)
    number = [("seq_id", 5)]
    first = start_sample(hostile, 1, IDS[:4], number, max_tokens=8, temperature=0.0)
    second = start_sample(other, 1, IDS[:6], number, max_tokens=3, temperature=0.0)
    assert first["request_id"] != second["request_id"]


def test_what_belongs_to_another_session_is_found_by_nobody_who_guesses(hostile, honest):
    guess = f"{'0' * 32}:train:0"
    for path, fields in {
        "get_info": {"model_id": guess},
        "unload_model": {"model_id": guess},
        "optim_step": {"model_id": guess, "seq_id": 1, "adam_params": {}},
        "save_weights": {"model_id": guess, "seq_id": 1, "path": "x"},
        "retrieve_future": {"request_id": f"{guess}:1"},
        "session_heartbeat": {"session_id": "0" * 32},
        "create_model": {"session_id": "0" * 32, "model_seq_id": 0},
        "weights_info": {"tinker_path": f"tinker://{guess}/weights/x"},
        "asample": {**asample(max_tokens=1), "sampling_session_id": f"{'0' * 32}:sample:0"},
    }.items():
        error = hostile.error_of("POST", path, content=json.dumps(fields))
        assert "there is no" in error
    for path in (f"sessions/{'0' * 32}", f"samplers/{guess}", f"training_runs/{guess}"):
        assert "there is no" in hostile.error_of("GET", path)
    assert hostile.post("cancel_future", request_id=f"{'0' * 32}:sample:0:0") == {}


def test_a_training_request_is_not_cancelled_by_its_id(hostile):
    wanted = hostile.computed([(IDS[:-1], GOOD)])
    future = hostile.forward_backward(hostile.model, hostile.next_id(), IDS)
    hostile.post("cancel_future", request_id=future["request_id"])
    assert hostile.answer(future) == wanted


NAMES = ["", ".", "..", "../x", "a/b", "/etc", "-rf", "\0", "a\0b", "a\n", "é", "a" * 129]


def test_checkpoints_have_plain_names_and_stay_in_their_folder(server, hostile):
    for name in NAMES:
        assert "checkpoint name" in hostile.save(name)["error"]
        path = f"tinker://{hostile.model}/weights/{name}"
        assert "no checkpoint" in hostile.error_of(
            "POST", "weights_info", content=json.dumps({"tinker_path": path})
        )
    names = [each.name for each in server.store.rglob("*")]
    assert "x" not in names and "etc" not in names
    for section in ("weights", "..%2f..", "%00"):
        path = f"training_runs/{hostile.model}/checkpoints/{section}/..%2f.."
        assert hostile.error_of("DELETE", path)
    assert "path" in hostile.save("mine")
    assert "exists already" in hostile.save("mine")["error"]


def test_a_number_far_ahead_is_refused_and_gaps_hold_little(hostile):
    step = {"model_id": hostile.model, "adam_params": {}}
    for seq_id in (MAX_EARLY + 2, 10**6, 2**63, 10**300):
        fields = json.dumps(step | {"seq_id": seq_id})
        assert "send it first" in hostile.error_of("POST", "optim_step", content=fields)
    early = [hostile.post("optim_step", seq_id=number, **step) for number in range(2, 300)]
    assert len(early) == 298
    hostile.answer(hostile.post("optim_step", seq_id=1, **step))
    assert "metrics" in hostile.answer(early[-1])


def test_models_of_the_highest_rank_leave_their_memory_with_their_session(hostile):
    for number in range(10, 14):
        fields = {"session_id": hostile.session_id, "model_seq_id": number}
        made = hostile.post("create_model", lora_config={"rank": 1024}, **fields)
        model = hostile.answer(made)["model_id"]
        assert hostile.loss(hostile.forward_backward(model, 1, IDS)) > 0
        assert "metrics" in hostile.answer(hostile.optim_step(model, 2))
    hostile.send("POST", f"sessions/{hostile.session_id}/finish", json={})


def test_requests_that_never_end_do_not_hold_the_server_up(server):
    host, port = server.address.removeprefix("http://").split(":")
    sockets = [socket.create_connection((host, int(port))) for _ in range(200)]
    head = (
        b"POST /api/v1/forward_backward HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 30000000\r\n"
    )
    for number, connection in enumerate(sockets):
        connection.sendall(head + (b"\r\n" + b"x" * 10_000 if number % 2 else b""))
    WireClient(server.address)
    for connection in sockets:
        connection.close()
