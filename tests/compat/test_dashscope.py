"""Models of DashScope for judges and other players, with several keys."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from ajet.task_rollout.dashscope_llm_bridge import create_external_llm_fn

from ajet.compat.agentjet.task_rollout.dashscope_llm_bridge import keys_to_try
from ajet.core.errors import ChatError, ConfigError

ASK = [{"role": "user", "content": "Is it right?"}]
REPLY = {
    "id": "1",
    "object": "chat.completion",
    "created": 0,
    "model": "qwen-max",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Yes."}}
    ],
}


class Server(BaseHTTPRequestHandler):
    """Answers requests whose key is `good`, and refuses the others."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = self.headers["authorization"].removeprefix("Bearer ")
        self.server.asked.append((key, body))
        is_good = key == self.server.good
        answer = REPLY if is_good else {"error": {"message": f"no such key {key}"}}
        content = json.dumps(answer).encode()
        self.send_response(200 if is_good else 401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.asked, server.good = [], "sk-backup"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def keys(monkeypatch):
    monkeypatch.setenv("DASHSCOPE_API_KEY", "sk-one|sk-two")
    monkeypatch.setenv("DASHSCOPE_API_KEY_BACKUP", "sk-backup")


def ask_of(server):
    url = f"http://127.0.0.1:{server.server_port}/v1"
    return create_external_llm_fn(
        alien_llm_model="qwen-max", alien_llm_response_length=512, base_url=url, retry_wait_s=0
    )


def test_a_judge_gets_a_message_and_the_keys_are_tried_in_turn(server, keys):
    reply = ask_of(server)(ASK, sampling_params_override={"temperature": 0.5}, request_id="7")
    assert reply == {"role": "assistant", "content": "Yes."}
    assert [key for key, _ in server.asked] in (
        ["sk-one", "sk-two", "sk-backup"],
        ["sk-two", "sk-one", "sk-backup"],
    )
    body = server.asked[-1][1]
    assert (body["model"], body["messages"]) == ("qwen-max", ASK)
    assert (body["temperature"], body["n"], body["max_completion_tokens"]) == (0.5, 1, 512)


def test_a_model_that_never_answers_is_one_line_without_a_key(server, keys):
    server.good = "none"
    with pytest.raises(ChatError) as error:
        ask_of(server)(ASK)
    assert "(tried 4 times)" in str(error.value)
    assert "sk-" not in str(error.value)
    assert "\n" not in str(error.value)


def test_calls_begin_with_different_keys_and_the_backup_is_optional(monkeypatch):
    monkeypatch.delenv("DASHSCOPE_API_KEY_BACKUP", raising=False)
    monkeypatch.setenv("DASHSCOPE_API_KEY", "a|b|c")
    assert {keys_to_try(1)[0] for _ in range(3)} == {"a", "b", "c"}
    monkeypatch.delenv("DASHSCOPE_API_KEY")
    with pytest.raises(ConfigError, match="set DASHSCOPE_API_KEY"):
        keys_to_try(1)


async def test_the_agentscope_model_tries_again_with_another_key(keys, monkeypatch):
    from agentscope.model import DashScopeChatModel  # half a second: imported where it is used
    from ajet.utils.robust_dashscope import RobustDashScopeChatModel

    used = []

    async def refused(self, messages, tools=None, **_):
        used.append(self.api_key)
        if self.api_key != "sk-backup":
            raise RuntimeError(f"401, {self.api_key}")
        return messages, tools

    monkeypatch.setattr(DashScopeChatModel, "__call__", refused)
    model = RobustDashScopeChatModel(model_name="qwen3-max", retry_wait_s=0)
    assert isinstance(model, DashScopeChatModel)
    assert await model(ASK, tools=None) == (ASK, None)
    assert sorted(used) == ["sk-backup", "sk-one", "sk-two"]
    monkeypatch.setenv("DASHSCOPE_API_KEY_BACKUP", "")
    with pytest.raises(ChatError, match=r"401, \*\*\* \(tried 4 times\)"):
        await model(ASK)
