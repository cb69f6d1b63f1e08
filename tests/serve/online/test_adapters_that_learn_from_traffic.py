"""Several adapters of a served model: each learns from its own users, and nothing else moves it."""

import json
import os
import signal
import sqlite3
from dataclasses import replace

import pytest
from safetensors.torch import load_file

from ajet.assembly import load_policy_model
from ajet.core.checkpoint.checkpoint import read_weights
from ajet.core.checkpoint.manifest import find_checkpoint
from ajet.core.errors import ConfigError
from ajet.core.trajectory.turn import TurnNotes
from ajet.core.update.export import export_model
from ajet.core.update.settings import UpdateSettings
from ajet.read.episode_reader import EpisodeFilter
from ajet.read.recorded_run import RecordedRun
from ajet.read.reports.audit_report import AuditReport, audit_parts
from ajet.serve.online.log import FILE, Feedback, SessionLog
from ajet.serve.online.round import rebuild
from ajet.serve.online.sessions import conversation_keys
from tests.serve.online.online_server import (
    ASKED,
    LearnerAtOnce,
    learn_at_once,
    served,
    several_in,
    write_several,
)
from tests.serve.online.test_kills_of_a_served_model import client_of, start, wait_until
from tests.serve.online.test_rounds import promote, session
from tests.serve.online.test_served_sessions import say, turn_of

EXCLUDES = "ajet.serve.learn.max_false_exclusion=0.2"


def liking(user, text):
    """Returns what a user finds of a reply: ada likes large digits, bo small ones."""
    digits = [int(letter) for letter in text if letter.isdigit()]
    large = (digits[0] if digits else 4.5) / 9
    return large if user == "ada" else 1 - large


def talk(here, adapter, number, *, client, reward=None):
    """Has a session of this number with feedback; returns its reply."""
    name = f"{adapter} {number}"
    headers = {"x-ajet-session": name}
    reply = here.chat(ASKED[number % 4], model=adapter, user=client, headers=headers)
    reward = liking(adapter, say(reply)) if reward is None else reward
    told = here.feedback(session=name, reward=reward, client=client)
    assert told.json()["status"] == "recorded", told.text
    return reply


def weights(run, version, adapter):
    tensors = read_weights(run / f"checkpoints/step_{version:06d}")
    return {name: tensor for name, tensor in tensors.items() if f".{adapter}." in name}


# --- opposite wishes -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run folder in which ada's and bo's users have had three rounds each, and what was seen."""
    folder = tmp_path_factory.mktemp("several")
    seen = {"rounds": [], "served": [], "status": []}
    more = (
        "ajet.serve.learn.sessions_per_round=24",
        "ajet.trainer_common.val_pass_n=8",
        "ajet.trainer_common.max_checkpoints_to_keep=3",
        "ajet.model.path=embedded:guess_number",  # answers with a number, whatever it is asked
    )
    with served(folder, *more, config_in=several_in) as here:
        seen["models"] = [each["id"] for each in here.http.get("/v1/models").json()["data"]]
        for turn in range(3):
            for user in ("ada", "bo"):
                replies = [talk(here, user, 24 * turn + n, client=user) for n in range(24)]
                headers = [
                    (each.headers["x-ajet-adapter"], each.headers["x-ajet-version"])
                    for each in replies
                ]
                seen["served"].append(set(headers))
                seen["status"].append(here.http.get("/ajet/v1/status").json())
                seen["rounds"].append(here.round())
        seen["status"].append(here.http.get("/ajet/v1/status").json())
        seen["said"] = list(here.said)
    return folder / "served", seen


def test_users_who_want_opposite_things_each_get_an_adapter_that_is_better_for_them(finished):
    reports = [each.report["held_out"] for each in finished[1]["rounds"]]
    for first, last in ((reports[0], reports[4]), (reports[1], reports[5])):
        assert last["after"]["value"] > first["before"]["value"] + 0.2


def test_a_round_is_of_the_adapter_with_enough_feedback_and_begins_from_its_own_version(finished):
    rounds = finished[1]["rounds"]
    assert [(each.adapter, each.number, each.base) for each in rounds] == [
        ("ada", 1, 0), ("bo", 2, 0), ("ada", 3, 1), ("bo", 4, 2), ("ada", 5, 3), ("bo", 6, 4)
    ]  # fmt: skip
    assert finished[1]["said"][2:4] == [
        "round 2: adapter bo trains from version 0",
        f"round 2: version 2 of adapter bo is promoted: {rounds[1].report['reason']}",
    ]


def test_each_reply_says_its_adapter_and_its_version(finished):
    assert finished[1]["served"] == [
        {("ada", "0")}, {("bo", "0")}, {("ada", "1")}, {("bo", "2")}, {("ada", "3")}, {("bo", "4")}
    ]  # fmt: skip
    assert finished[1]["models"] == ["ada", "bo"]


def test_the_status_says_each_adapters_state(finished):
    status = finished[1]["status"]
    before, after = status[1]["adapters"], status[-1]["adapters"]
    assert (before["ada"]["version"], before["ada"]["num_waiting"]) == (1, 0)
    assert (before["bo"]["version"], before["bo"]["num_waiting"]) == (0, 24)
    assert (after["ada"]["versions"], after["bo"]["versions"]) == ([3, 5], [4, 6])
    assert (after["bo"]["num_in_rounds"], status[-1]["num_in_rounds"]) == (72, 144)
    assert [each["adapter"] for each in status[-1]["rounds"]] == ["ada", "bo"] * 3


def test_a_promotion_leaves_every_bit_of_the_other_adapter(finished):
    run, _ = finished
    for version, changed, kept in ((5, "ada", "bo"), (6, "bo", "ada")):
        now, before = (weights(run, each, kept) for each in (version, version - 1))
        assert now.keys() == before.keys() != set()
        assert all(now[name].equal(before[name]) for name in now)
        now, before = (weights(run, each, changed) for each in (version, version - 1))
        assert not all(now[name].equal(before[name]) for name in now)


def test_each_adapters_versions_are_made_again_with_the_same_bits(finished, tmp_path, monkeypatch):
    run, seen = finished
    monkeypatch.chdir(tmp_path)
    found = list(rebuild(RecordedRun(run), tmp_path / "versions"))
    assert [(each.adapter, each.version) for each in found] == [
        (each.adapter, each.number) for each in seen["rounds"]
    ]
    assert all(each.is_same for each in found)
    file = "step_000006/model.safetensors"
    assert (tmp_path / "versions" / file).read_bytes() == (run / "checkpoints" / file).read_bytes()


def test_a_version_is_measured_by_the_seeds_of_the_one_before_it(finished):
    """Seeds depend on a task's place, which is that among the tasks of all adapters."""
    places = {}
    with RecordedRun(finished[0]).reader() as reader:
        for each in reader.walk(EpisodeFilter(mode="eval"), None):
            place = each.row.group_id.rpartition("-")[2]
            places.setdefault(each.row.step, {})[each.row.task_id] = int(place)
    assert sorted(places[0].values()) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert places[0] == places[1] | places[2]


def test_the_record_is_sound_and_an_adapter_is_exported_from_it(finished, tmp_path):
    run = RecordedRun(finished[0])
    report = AuditReport.from_parts(run, audit_parts(run, EpisodeFilter(mode="train")))
    assert report.is_sound
    assert json.loads(report.as_json())["episodes"] == 144
    loaded, lora = load_policy_model(run.config), UpdateSettings.from_config(run.config).lora
    newest = find_checkpoint(finished[0])
    export_model(loaded, newest, tmp_path / "bo", lora=lora, adapter=True, name="bo")
    exported = load_file(tmp_path / "bo/adapter_model.safetensors").values()
    kept = weights(finished[0], 6, "bo").values()
    assert sorted(t.sum().item() for t in exported) == sorted(t.sum().item() for t in kept)


def test_each_version_is_measured_on_its_adapters_tasks_alone(finished):
    log = SessionLog(finished[0])
    tasks = [len(log.held_out(version)) for version in (0, 5, 6)]
    disjoint = log.held_out(5).keys().isdisjoint(log.held_out(6))
    log.close()
    assert tasks == [8, 4, 4]
    assert disjoint


# --- what one adapter's users do is nothing to the other -----------------------------------------


def test_a_liar_among_an_adapters_clients_leaves_the_other_as_if_it_were_alone(tmp_path):
    """Eve lies loudly to ada's adapter, and is honest with bo's."""
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    for folder in (alone, beside):
        folder.mkdir()

    def of_bo(here):
        for number in range(4):
            talk(here, "bo", number, client=("bo", "eve")[number % 2])
        done = here.round()
        assert done.adapter == "bo"
        after = here.chat(ASKED[0], model="bo", headers={"x-ajet-session": "after"})
        [turn] = here.log.turns(after.headers["x-ajet-session"]).values()
        return done, done.report["held_out"], turn.completion.token_ids, turn.completion.logprobs

    with served(alone, EXCLUDES, config_in=several_in) as here:
        expected, *was_served = of_bo(here)
    with served(beside, EXCLUDES, config_in=several_in) as here:
        for first in (0, 20):
            asked = talk(here, "ada", first, client="").headers["x-ajet-session"]
            [turn] = here.log.turns(asked).values()
            [key] = conversation_keys([*turn.messages, turn.reply], "ada")
            for number, client in enumerate(["eve", "ada", "cleo"], first + 1):
                here.log.add_turn(session(number), client, 0, turn, key)
                reward = 900.0 if client == "eve" else 0.0
                here.feedback(session=session(number), reward=reward, client=client)
        of_ada = here.round()
        found, *is_served = of_bo(here)
        status = here.http.get("/ajet/v1/status").json()["adapters"]
    assert (of_ada.adapter, of_ada.unreliable_clients) == ("ada", ["eve"])
    assert (found.number, found.unreliable_clients) == (2, [])
    assert (found.checksum, is_served) == (expected.checksum, was_served)
    assert (status["ada"]["num_unreliable"], status["bo"]["num_unreliable"]) == (2, 0)


def test_a_learner_that_always_dies_holds_up_its_own_adapter_alone(tmp_path):
    def begin(folder, due):
        return LearnerAtOnce(137) if due.adapter == "ada" else learn(folder, due)

    learn = None
    with served(tmp_path, config_in=several_in, start=begin) as here:
        learn = learn_at_once(here.server.config)
        for user in ("ada", "bo"):
            for number in range(4):
                talk(here, user, number, client=user)
        for _ in range(8):
            here.server.advance(here.said.append)
        assert here.said[:4] == ["round 1: adapter ada trains from version 0"] * 3 + [
            "round 1: adapter bo trains from version 0"
        ]
        assert (here.log.served_version("ada"), here.log.served_version("bo")) == (0, 1)
        assert (here.log.num_waiting("ada"), here.log.num_waiting("bo")) == (4, 0)
    with served(tmp_path, config_in=several_in) as here:
        assert here.round().adapter == "ada"
        assert here.server.models["bo"].current.version == 1
        assert here.server.models["ada"].current.version == 2


def test_adapters_with_enough_feedback_take_turns(tmp_path):
    def begin(folder, due):
        log = SessionLog(folder.path)
        log.end_round(due.number, "rolled_back", "c", {"reason": ""}, {})
        log.close()
        return LearnerAtOnce()

    with served(tmp_path, config_in=several_in, start=begin) as here:
        for user, number in (("ada", 8), ("bo", 4)):
            for place in range(number):
                talk(here, user, place, client=user)
        assert [here.round().adapter for _ in range(3)] == ["ada", "bo", "ada"]


# --- requests ------------------------------------------------------------------------------------


def test_a_session_is_of_one_adapter_and_a_request_of_one_that_there_is(tmp_path):
    with served(tmp_path, config_in=several_in) as here:
        first = here.chat("hi", model="ada", headers={"x-ajet-session": "s"})
        other = here.chat("hi", say(first), "go on", model="bo")
        same = here.chat("hi", say(first), "go on", model="ada")
        changed = here.chat("hi", model="bo", headers={"x-ajet-session": "s"})
        unknown = here.chat("hi", model="gpt")
        here.server.gateway.services.sessions._open.clear()  # as after a new start
        restored = here.chat("hi", say(first), "go on", model="ada")
        after = here.chat("hi", model="bo", headers={"x-ajet-session": "s"})
    names = [each.headers["x-ajet-session"] for each in (first, same, restored, other)]
    assert (names[0], names[0], names[0] == names[3]) == (names[1], names[2], False)
    assert (changed.status_code, after.status_code, unknown.status_code) == (400, 400, 404)
    assert f"session {names[0]} is of adapter ada" in changed.json()["error"]["message"]
    assert unknown.json()["error"]["code"] == "model_not_found"
    assert "there are ada, bo" in unknown.json()["error"]["message"]


def test_an_adapter_without_a_held_out_task_is_refused(tmp_path):
    def without_bo(folder, *overrides):
        config = several_in(folder, *overrides)
        rows = (folder / "tasks.jsonl").read_text().splitlines()
        (folder / "tasks.jsonl").write_text("\n".join(rows[:4]))
        return config

    here = served(tmp_path, config_in=without_bo)
    with pytest.raises(ConfigError, match="there is no held-out task of adapter bo"), here:
        pass


# --- killed --------------------------------------------------------------------------------------


def test_a_server_that_is_killed_in_an_adapters_round_goes_on_with_it(tmp_path, monkeypatch):
    write_several(tmp_path)
    process, _, url = start(tmp_path)
    with client_of(url) as http:
        for number in range(4):
            body = {"messages": [{"role": "user", "content": ASKED[number]}], "model": "bo"}
            reply = http.post("/v1/chat/completions", json=body)
            told = {"response": reply.json()["id"], "reward": number % 2}
            assert http.post("/ajet/v1/feedback", json=told).json()["status"] == "recorded"
    run = tmp_path / "launcher_record/served"
    log = SessionLog(run)
    wait_until(log.open_round, "the learner begins", tmp_path, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)

    process, _, url = start(tmp_path)
    with client_of(url) as http:

        def version():
            assert process.poll() is None, (tmp_path / "serve.log").read_text()
            return http.get("/ajet/v1/status").json()["adapters"]["bo"]["version"]

        wait_until(version, "a promoted version", tmp_path, process)
        status = http.get("/ajet/v1/status").json()["adapters"]
    process.terminate()
    assert process.wait(60) == 0
    assert (status["ada"]["version"], status["bo"]["version"]) == (0, 1)
    assert [(each.number, each.adapter) for each in log.rounds()] == [(1, "bo")]
    log.close()
    monkeypatch.chdir(tmp_path)
    [found] = rebuild(RecordedRun(run))
    assert (found.adapter, found.is_same) == ("bo", True)


# --- the log alone -------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path):
    log = SessionLog(tmp_path)
    yield log
    log.close()


def rate(log, number, adapter, *, version=0, reward=1.0, client="", key="key"):
    turn = replace(turn_of(version), notes=TurnNotes(adapter=adapter))
    log.add_turn(session(number), client, 0, turn, key)
    log.add_feedback(Feedback(session(number), reward, client=client))


def test_a_round_takes_its_adapters_sessions_and_its_own_promotions_make_them_stale(log):
    rate(log, 1, "ada")
    rate(log, 2, "bo")
    assert log.begin_round(2, 0, adapter="ada") is None
    first = log.begin_round(1, 0, adapter="bo")
    assert (first.number, first.adapter, first.base) == (1, "bo", 0)
    assert [each.session for each in log.sessions_of(1)] == [session(2)]
    promote(log, 1)
    rate(log, 3, "bo")  # its version 0 is one promotion of bo's ago; that of ada's is not
    assert log.begin_round(1, 0, adapter="bo") is None
    assert log.begin_round(1, 0, adapter="ada").base == 0
    assert (log.counts("bo")["num_stale"], log.counts("ada")["num_stale"]) == (1, 0)
    assert (log.served_version("bo"), log.served_version("ada"), log.version) == (1, 0, 1)


def test_clients_are_compared_within_an_adapter(log):
    for number, (client, reward) in enumerate([("ada", 1.0), ("bob", 1.0), ("eve", 0.0)]):
        rate(log, number, "ada", client=client, reward=reward, key="key of ada")
        rate(log, 10 + number, "bo", client=client, reward=1 - reward, key="key of bo")
    rate(log, 20, "bo", client="cleo", reward=0.0, key="key of bo")
    assert [each.contradicted for each in log.agreements("ada") if each.client == "eve"] == [1]
    assert [each.contradicted for each in log.agreements("bo") if each.client == "eve"] == [1]
    log.add_verdicts({"key of bo": True})  # the judge of bo's held-out tasks agrees with eve
    assert [each.contradicted for each in log.agreements("ada") if each.client == "eve"] == [1]
    assert [each.contradicted for each in log.agreements("bo") if each.client == "eve"] == [0]


def test_a_round_that_is_withdrawn_leaves_its_sessions_and_its_number(log):
    rate(log, 1, "ada")
    rate(log, 2, "bo")
    log.begin_round(1, 0, adapter="ada")
    log.withdraw_round(1)
    assert (log.open_round(), log.num_waiting("ada")) == (None, 1)
    assert log.begin_round(1, 0, adapter="bo").number == 1
    promote(log, 1)
    log.withdraw_round(1)  # it is decided
    assert (log.version, log.num_waiting("bo")) == (1, 0)


def test_the_log_of_an_earlier_version_is_that_of_a_model_without_several_adapters(tmp_path):
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute(
            "CREATE TABLE turns (session TEXT NOT NULL, number INTEGER NOT NULL, "
            "version INTEGER NOT NULL, client TEXT NOT NULL, key TEXT NOT NULL, "
            "body BLOB NOT NULL, PRIMARY KEY (session, number))"
        )
        database.execute(
            "CREATE TABLE rounds (number INTEGER PRIMARY KEY, base INTEGER NOT NULL, "
            "state TEXT NOT NULL, checksum TEXT, report TEXT NOT NULL DEFAULT '{}')"
        )
        row = (1, 0, "promoted", "c", json.dumps({}))
        database.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?)", row)
    database.close()
    log = SessionLog(tmp_path)
    assert (log.round(1).adapter, log.served_version()) == ("", 1)
    rate(log, 1, "")
    assert log.begin_round(1, 1).base == 1
    assert [len(each.turns) for each in log.sessions_of(2)] == [1]
    log.close()
