"""Requests to a served model: which session they are, which version answers, what is kept."""

import itertools

import pytest

from ajet.engines import in_process
from ajet.serve.online.log import SessionLog
from ajet.serve.online.serving import make_recorders
from ajet.serve.online.sessions import Sessions, conversation_keys, session_of
from tests.serve.online.online_server import config_in, served

PRAISE = """
def praise(messages):
    said = messages[-1]["content"]
    return {"thanks": 1.0, "no": 0.0}.get(said) if said != "crash" else 1 / 0
"""
questions = (f"What is {number}+1?" for number in itertools.count())


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sessions")
    (folder / "own.py").write_text(PRAISE)
    with served(folder, "ajet.serve.learn.next_message=own.py->praise") as here:
        yield here


def say(response):
    return response.json()["choices"][0]["message"]["content"]


def test_a_reply_says_its_session_and_its_version(server):
    reply = server.chat(next(questions))
    assert reply.status_code == 200
    assert reply.headers["x-ajet-version"] == "0"
    assert reply.json()["system_fingerprint"] == "version-0"
    session = reply.headers["x-ajet-session"]
    assert f"chatcmpl-{session}-" in reply.json()["id"]
    [turn] = server.log.turns(session).values()
    assert turn.reply["content"] == say(reply)
    assert len(turn.completion.logprobs) == len(turn.completion.token_ids) > 0


def test_a_call_of_an_idle_server_waits_for_no_other(server, monkeypatch):
    longer_than_the_client_waits = 70
    for pause in ("GATHER_S", "MAX_GATHER_S"):
        monkeypatch.setattr(in_process, pause, longer_than_the_client_waits)
    assert server.chat(next(questions)).status_code == 200


def test_a_conversation_that_goes_on_is_the_same_session_with_its_recorded_ids(server):
    question = next(questions)
    first = server.chat(question)
    second = server.chat(question, say(first), "go on")
    assert second.headers["x-ajet-session"] == first.headers["x-ajet-session"]
    a, b = server.log.turns(first.headers["x-ajet-session"]).values()
    recorded = a.completion.prompt_ids + a.completion.token_ids
    assert b.completion.prompt_ids[: len(recorded)] == recorded


def test_other_words_another_client_or_a_new_beginning_are_another_session(server):
    question = next(questions)
    first = server.chat(question, user="ada")
    others = [
        server.chat(question, user="ada"),
        server.chat(question, "something else", "go on", user="ada"),
        server.chat(question, say(first), "go on", user="bob"),
        server.chat(question, say(first), "go on", headers={"x-ajet-client": "eve"}),
    ]
    assert len({each.headers["x-ajet-session"] for each in [first, *others]}) == 5


def test_a_session_that_is_named_is_found_by_its_name_whatever_is_said(server):
    question = next(questions)
    replies = [
        server.chat(question, headers={"x-ajet-session": "support-17"}),
        server.chat("other words", metadata={"session_id": "support-17"}),
        server.chat("and others", headers={"x-ajet-session": session_of("support-17")}),
    ]
    assert {each.headers["x-ajet-session"] for each in replies} == {session_of("support-17")}
    told = server.feedback(session="support-17", reward=0.5)
    assert told.json() == {
        "status": "recorded",
        "session": session_of("support-17"),
        "reward": 0.5,
    }


def test_responses_and_messages_are_sessions_too(server):
    asked = {"model": "m", "input": next(questions)}
    first = server.http.post("/v1/responses", json=asked)
    more = asked | {"input": "go on", "previous_response_id": first.json()["id"]}
    second = server.http.post("/v1/responses", json=more)
    said = [{"role": "user", "content": next(questions)}]
    third = server.http.post("/v1/messages", json={"model": "m", "max_tokens": 6, "messages": said})
    assert [each.status_code for each in (first, second, third)] == [200, 200, 200]
    assert second.headers["x-ajet-session"] == first.headers["x-ajet-session"]
    assert third.headers["x-ajet-version"] == "0"
    told = server.feedback(response=third.json()["id"], reward=1)
    assert told.json()["session"] == third.headers["x-ajet-session"]


def test_a_session_goes_on_from_the_log_after_the_server_was_started_again(server):
    question = next(questions)
    first = server.chat(question)
    session = first.headers["x-ajet-session"]
    server.server.gateway.services.sessions._open.clear()  # as after a new start
    second = server.chat(question, say(first), "go on")
    assert second.headers["x-ajet-session"] == session
    assert second.json()["id"] != first.json()["id"]
    a, b = server.log.turns(session).values()
    recorded = a.completion.prompt_ids + a.completion.token_ids
    assert b.completion.prompt_ids[: len(recorded)] == recorded


def test_feedback_counts_once_by_its_id_and_a_later_one_replaces_it(server):
    reply = server.chat(next(questions))
    given = {"response": reply.json()["id"], "reward": True, "feedback_id": "f1"}
    before = server.log.num_waiting()
    statuses = [server.feedback(**given).json()["status"] for _ in range(2)]
    assert statuses == ["recorded", "repeated"]
    assert server.feedback(**given | {"feedback_id": "f2"}).json()["status"] == "recorded"
    assert server.log.num_waiting() == before + 1


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"reward": 1}, 400, "one of response"),
        ({"response": "chatcmpl-1", "reward": 1}, 400, "not the id of a reply"),
        ({"response": "s-00000000000000ff", "reward": 1}, 404, "no session"),
        ({"session": "nobody", "reward": None}, 404, "no session"),
        ({"session": "x", "reward": 1e300}, 400, "reward must be"),
        ({"session": "x", "reward": "good"}, 400, "reward must be"),
        ({"session": "x", "reward": 1, "stars": 5}, 400, "unknown field stars"),
    ],
)
def test_feedback_that_cannot_be_taken_is_refused_with_its_reason(server, body, status, said):
    told = server.feedback(**body)
    assert told.status_code == status
    assert said in told.json()["error"]["message"]


def test_another_key_gets_neither_replies_nor_a_say(server):
    stranger = {"authorization": "Bearer other"}
    assert server.chat("hi", headers=stranger).status_code == 401
    body = {"session": "support-17", "reward": 1}
    refused = server.http.post("/ajet/v1/feedback", json=body, headers=stranger)
    assert refused.status_code == 401


def test_the_judge_gives_the_reward_that_a_feedback_leaves_open(server):
    reply = server.chat(next(questions))
    unknown = server.feedback(response=reply.json()["id"])
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (502, "judge_failed")
    told = server.feedback(response=reply.json()["id"], metadata={"answer": "no number"})
    assert told.json()["reward"] == 0.0


def test_the_users_next_message_is_feedback_on_what_was_said_before_it(server):
    question = next(questions)
    reply = server.chat(question, metadata={"session_id": "talk"})
    talk = {"metadata": {"session_id": "talk"}}
    assert server.chat(question, say(reply), "hm", **talk).status_code == 200
    before = server.log.num_waiting()
    assert server.chat(question, say(reply), "crash", **talk).status_code == 200
    assert server.log.num_waiting() == before
    assert server.chat(question, say(reply), "thanks", **talk).status_code == 200
    assert server.log.num_waiting() == before + 1
    query = "SELECT num_turns, reward, source FROM feedback WHERE session = ?"
    rows = server.log._db.execute(query, (session_of("talk"),)).fetchall()
    assert rows == [(3, 1.0, "next_message")]


def test_a_call_that_fails_leaves_a_gap_and_the_session_goes_on_behind_it(tmp_path):
    log = SessionLog(tmp_path)
    turn = turn_of(0)
    for number in (0, 2):
        log.add_turn("s-0000000000000001", "", number, turn, "key")
    template = template_of("qwen2_5")
    sessions = Sessions(log, make_recorders(config_in(tmp_path), template))
    grant = sessions._named("s-0000000000000001", "")
    assert grant.recorder.num_calls_left == grant.recorder.limits.max_steps - 3
    log.close()


def test_a_conversation_has_a_key_for_each_reply():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    asked, said = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    again = {**called, "tool_calls": [{**call, "id": "2"}]}
    keys = conversation_keys([asked, said, asked, called])
    assert len(set(keys)) == 2
    assert keys == conversation_keys([asked, {**said, "content": " b\n"}, asked, again])
    assert keys[0] != conversation_keys([asked, asked, said])[0]


def turn_of(version):
    from ajet.core.inference.endpoint import Completion
    from ajet.core.trajectory.turn import Turn

    completion = Completion((1, 2), (3,), (-0.5,), "stop", version)
    reply = {"role": "assistant", "content": "b"}
    return Turn(completion, [{"role": "user", "content": "a"}], None, reply)


def template_of(family):
    from ajet.core.inference.chat_template import ChatTemplate
    from tests.fakes import chat_tokenizer

    return ChatTemplate(chat_tokenizer(family))
