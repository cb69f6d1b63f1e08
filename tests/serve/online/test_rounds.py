"""Rounds of a served model: what is trained, promoted, rolled back, and made again from the log."""

import json
import sqlite3

import pytest

from ajet.core.config import load_config
from ajet.core.errors import ConfigError, RunChanged
from ajet.core.images.forms import data_url
from ajet.core.images.image import NO_LIMITS, Image
from ajet.read.episode_reader import EpisodeFilter
from ajet.read.recorded_run import RecordedRun
from ajet.read.reports.audit_report import AuditReport, audit_parts
from ajet.serve.online import learner
from ajet.serve.online.log import FILE, Feedback, SessionLog
from ajet.serve.online.round import rebuild
from ajet.serve.online.sessions import conversation_keys
from ajet.serve.online.setup import check_can_learn
from tests.serve.online.online_server import YAML, LearnerAtOnce, served
from tests.serve.online.test_served_sessions import turn_of
from tests.vision_models import picture, save_vision_model


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run folder with three rounds: promoted, rolled back, promoted; and what was seen."""
    folder = tmp_path_factory.mktemp("rounds")
    seen = {}
    with served(folder) as here:
        first = here.chat("What is 1+1?")
        here.rated([1.0, 0.0, 0.0, 1.0], client="ada")
        seen["promoted"] = here.round()
        said = first.json()["choices"][0]["message"]["content"]
        seen["kept"] = here.chat("What is 1+1?", said, "go on").headers["x-ajet-version"]
        seen["new"] = here.chat("What is 2+2?").headers["x-ajet-version"]
        late = first_session(here.log, 1)
        seen["late"] = here.feedback(session=late, reward=1.0).json()["status"]
        seen["status"] = here.http.get("/ajet/v1/status").json()
        seen["said"] = list(here.said)
    with served(folder, "ajet.serve.learn.min_difference=1.0") as here:
        seen["after_restart"] = here.chat("What is 3+3?").headers["x-ajet-version"]
        here.rated([0.0, 1.0, 1.0, 0.0])
        seen["rolled_back"] = here.round()
        seen["after_rollback"] = here.chat("What is 4+4?").headers["x-ajet-version"]
    with served(folder) as here:
        here.rated([1.0, 1.0, 0.0, 0.0])
        seen["third"] = here.round()
        seen["counts"] = here.log.counts()
        seen["of_round"] = [
            {each.session for each in here.log.sessions_of(number)} for number in (1, 2, 3)
        ]
    return folder / "served", seen


def test_sessions_with_pictures_are_trained_and_made_again(tmp_path, monkeypatch):
    """The server, the learner and the rebuilding process each read the images of the run folder."""
    monkeypatch.chdir(tmp_path)
    save_vision_model("llava", tmp_path / "seeing")
    settings = ["ajet.model.path=seeing", "ajet.model.images.enabled=true"]
    with served(tmp_path, *settings) as here:
        for number in range(4):
            shown = {"type": "image_url", "image_url": {"url": picture_url(number)}}
            reply = here.chat([{"type": "text", "text": "What?"}, shown])
            assert reply.status_code == 200, reply.text
            here.feedback(response=reply.json()["id"], reward=float(number % 2))
        assert here.round().state == "promoted"
        again = here.chat([{"type": "text", "text": "What?"}, shown])
        assert (again.status_code, again.headers["x-ajet-version"]) == (200, "1")
    (version,) = rebuild(RecordedRun(tmp_path / "served"))
    assert version.is_same


def picture_url(seed):
    return data_url(Image.from_picture(picture(seed), NO_LIMITS))


def first_session(log, number):
    return log.sessions_of(number)[0].session


def test_enough_feedback_makes_a_version_and_new_sessions_have_it(finished):
    _, seen = finished
    assert (seen["promoted"].number, seen["promoted"].base) == (1, 0)
    assert seen["promoted"].state == "promoted"
    assert seen["new"] == "1"
    assert seen["said"][0] == "round 1: trains from version 0"
    assert seen["said"][1].startswith("round 1: version 1 is promoted: held-out success ")


def test_a_session_keeps_the_version_that_it_began_with(finished):
    assert finished[1]["kept"] == "0"
    assert finished[1]["status"]["versions"] == [0, 1]


def test_feedback_for_a_session_that_a_round_has_taken_is_late(finished):
    assert finished[1]["late"] == "late"


def test_a_round_says_what_its_decision_rests_on_and_who_gave_feedback(finished):
    report = finished[1]["promoted"].report
    assert report["reward"] == 0.5
    assert report["clients"] == [{"client": "ada", "sessions": 4, "reward": 0.5, "z": 0.0}]
    assert report["held_out"]["before"]["value"] is not None
    assert report["shadow"]["num_sessions"] == 2
    assert report["shadow"]["kl"] > 0
    assert report["update"]["update/optimizer_steps"] == 1.0


def test_a_version_that_is_not_better_enough_is_never_served(finished):
    _, seen = finished
    assert seen["rolled_back"].state == "rolled_back"
    assert "is below 1" in seen["rolled_back"].report["reason"]
    assert (seen["after_restart"], seen["after_rollback"]) == ("1", "1")


def test_traffic_of_a_rolled_back_round_is_not_trained_again(finished):
    _, seen = finished
    assert (seen["third"].base, seen["third"].number, seen["third"].state) == (1, 3, "promoted")
    assert len(set.union(*seen["of_round"])) == sum(map(len, seen["of_round"])) == 12
    assert seen["counts"]["num_in_rounds"] == 12


def test_the_promoted_versions_are_made_again_from_the_log_with_the_same_bits(
    finished, tmp_path, monkeypatch
):
    folder, seen = finished
    monkeypatch.chdir(tmp_path)
    found = list(rebuild(RecordedRun(folder), tmp_path / "versions"))
    assert [each.version for each in found] == [1, 3]
    assert all(each.is_same for each in found)
    assert found[0].rebuilt == seen["promoted"].checksum != found[1].rebuilt
    assert (tmp_path / "versions/step_000003/model.safetensors").read_bytes() == (
        folder / "checkpoints/step_000003/model.safetensors"
    ).read_bytes()


def test_a_log_that_was_changed_makes_another_version_which_is_named(
    finished, tmp_path, monkeypatch
):
    folder, _ = finished
    monkeypatch.chdir(tmp_path)
    database = sqlite3.connect(folder / FILE)
    with database:
        database.execute("UPDATE feedback SET reward = 1 - reward WHERE place = 1")
    [found] = rebuild(RecordedRun(folder))
    with database:
        database.execute("UPDATE feedback SET reward = 1 - reward WHERE place = 1")
    database.close()
    assert (found.version, found.is_same) == (1, False)


def test_the_record_of_a_served_run_is_sound(finished):
    run = RecordedRun(finished[0])
    report = AuditReport.from_parts(run, audit_parts(run, EpisodeFilter(mode="train")))
    assert report.is_sound
    assert json.loads(report.as_json())["episodes"] == 12


def test_a_learners_process_runs_its_round_with_the_configs_niceness(finished, monkeypatch):
    done = []
    monkeypatch.setattr("sys.argv", ["learner", str(finished[0]), "3"])
    monkeypatch.setattr(learner, "begin_screen_log", lambda is_verbose: None)
    monkeypatch.setattr(learner.os, "nice", done.append)
    monkeypatch.setattr(
        learner, "run_round", lambda config, folder, log, this: done.append(this.number)
    )
    learner.main()
    assert done == [1, 3]


@pytest.mark.parametrize("override", ["version_for=request", "num_versions=1"])
def test_a_session_has_the_newest_version_where_the_config_says_so_or_its_own_is_let_go(
    tmp_path, override
):
    with served(tmp_path, f"ajet.serve.learn.{override}") as here:
        first = here.chat("What is 1+1?")
        here.rated([1.0, 0.0, 0.0, 1.0])
        here.round()
        said = first.json()["choices"][0]["message"]["content"]
        second = here.chat("What is 1+1?", said, "go on")
    assert second.headers["x-ajet-session"] == first.headers["x-ajet-session"]
    assert (first.headers["x-ajet-version"], second.headers["x-ajet-version"]) == ("0", "1")


def test_a_learner_that_always_dies_does_not_end_the_server(tmp_path):
    with served(tmp_path, start=lambda folder, due: LearnerAtOnce(137)) as here:
        here.rated([1.0, 0.0, 0.0, 1.0])
        for _ in range(10):
            here.server.advance(here.said.append)
        assert here.said == ["round 1: trains from version 0"] * 3
        assert (here.log.rounds(), here.log.num_waiting()) == ([], 4)
        assert here.chat("still there?").headers["x-ajet-version"] == "0"


def test_another_experiment_in_the_folder_is_refused_and_another_rule_is_not(finished):
    folder, _ = finished
    for override, said in (
        ("optim.lr=0.5", r"optim\.lr 0\.001 -> 0\.5"),
        ("torch_threads=2", "1 -> 2"),
    ):
        changed = served(folder.parent, f"ajet.trainer_common.{override}")
        with pytest.raises(RunChanged, match=said), changed:
            pass
    with served(folder.parent, "ajet.serve.learn.sessions_per_round=9") as here:
        assert here.server.models[""].current.version == 3


def test_the_config_says_whose_sessions_are_trained_and_how_old_they_may_be(tmp_path):
    limits = "ajet.serve.learn.excluded_clients=[eve]", "ajet.serve.learn.max_staleness=0"
    with served(tmp_path, *limits) as here:
        here.rated([1.0, 0.0, 0.0, 1.0], client="eve")
        here.server.advance(here.said.append)
        rate(here.log, 1, client="ada")
        here.log.begin_round(1, 0)
        promote(here.log, 1)
        here.rated([1.0, 0.0, 0.0, 1.0], client="ada")  # version 0 is loaded still
        here.server.advance(here.said.append)
        counts = here.log.counts()
    assert here.said == []
    assert (counts["num_excluded"], counts["num_stale"], counts["num_in_rounds"]) == (4, 4, 1)


def test_a_round_without_the_sessions_of_a_client_that_contradicts_is_made_again_with_the_same_bits(
    tmp_path, monkeypatch
):
    with served(tmp_path, "ajet.serve.learn.max_false_exclusion=0.2") as here:
        for first, question in ((10, "What is 1+1?"), (20, "What is 2+2?")):
            asked = here.chat(question).headers["x-ajet-session"]
            [turn] = here.log.turns(asked).values()
            [key] = conversation_keys([*turn.messages, turn.reply])
            is_good = first == 20
            for number, client in enumerate(["eve", "ada", "bob"]):
                here.log.add_turn(session(first + number), client, 0, turn, key)
                reward = 9.0 * (not is_good) if client == "eve" else float(is_good)
                told = {"session": session(first + number), "reward": reward, "client": client}
                assert here.feedback(**told).json()["status"] == "recorded"
        done = here.round()
        [status] = here.http.get("/ajet/v1/status").json()["rounds"]
        counts = here.log.counts()
    assert here.said[0] == (
        "round 1: trains from version 0, without the feedback of eve, which contradicts that of "
        "others"
    )
    assert [each["client"] for each in done.report["clients"]] == ["ada", "bob"]
    assert (status["unreliable_clients"], status["agreement"]) == (
        ["eve"],
        [{"client": "eve", "agreed": 0, "contradicted": 2, "chance": 0.18}],
    )
    assert (counts["num_in_rounds"], counts["num_unreliable"]) == (4, 2)
    run = RecordedRun(tmp_path / "served")
    logged = map(json.loads, (run.folder.logs / "metrics.jsonl").read_text().splitlines())
    named = [(k, value) for line in logged for k, value in line.items() if "unreliable" in k]
    assert named == [("feedback/unreliable_clients", 1), ("feedback/unreliable_sessions", 2)]
    monkeypatch.chdir(tmp_path)
    assert [each.is_same for each in rebuild(run)] == [True]


def test_the_judges_verdicts_on_held_out_episodes_are_stored_by_conversation(finished):
    folder, _ = finished
    log = SessionLog(folder)
    before = log.held_out(0)
    with sqlite3.connect(folder / FILE) as database:
        verdicts = dict(database.execute("SELECT key, is_success FROM verdicts"))
    log.close()
    # Each version has played four tasks, in one or more different conversations.
    assert len(before) == 4 <= len(verdicts) <= 16
    assert all(len(key) == 24 for key in verdicts)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("ajet.backbone=verl", "ajet.backbone: verl: a served model learns on backbone debug"),
        ("ajet.kind=supervised", "ajet.kind: supervised: feedback is a reward"),
        (
            "ajet.rollout.name=vllm",
            "ajet.rollout.name: vllm: versions are served by the in-process",
        ),
        ("+ajet.stages.one.seed=1", "ajet.stages: serve one stage at a time"),
        ("ajet.trainer_common.algorithm.adv_estimator=grpo", "grpo: traffic has no groups"),
        (
            "ajet.trainer_common.lora={rank: 2, adapters: [pro, con]}",
            "adapter_by: agent_name: a held-out task says whose it is: set metadata.KEY",
        ),
        ("ajet.serve.learn={max_shadow_kl: 1.0, shadow_sessions: 0}", "measured on shadow traffic"),
    ],
)
def test_settings_that_a_served_model_cannot_learn_with_are_refused(tmp_path, override, reason):
    (tmp_path / "served.yaml").write_text(YAML)
    config = load_config(tmp_path / "served.yaml", [override])
    with pytest.raises(ConfigError, match=f"ajet serve --learn: .*{reason}"):
        check_can_learn(config)


# --- the log alone -------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path):
    log = SessionLog(tmp_path)
    yield log
    log.close()


def session(number):
    return f"s-{number:016x}"


def rate(log, number, *, version=0, reward=1.0, client=""):
    log.add_turn(session(number), client, 0, turn_of(version), "key")
    log.add_feedback(Feedback(session(number), reward, client=client))


def promote(log, number):
    log.end_round(number, "promoted", "c", {}, {})


def test_a_round_takes_the_sessions_in_the_order_of_their_feedback(log):
    for number in (3, 1, 2):
        rate(log, number)
    log.add_feedback(Feedback(session(3), 0.25))
    assert log.begin_round(4, 2) is None
    assert log.begin_round(2, 2).number == 1
    assert [each.session for each in log.sessions_of(1)] == [session(1), session(2)]
    assert log.num_waiting() == 1
    rate(log, 4)
    assert log.begin_round(2, 2).number == 2
    rows = [(each.session, each.reward) for each in log.sessions_of(2)]
    assert rows == [(session(3), 0.25), (session(4), 1.0)]


def test_feedback_is_about_the_turns_that_there_were(log):
    rate(log, 1)
    log.add_turn(session(1), "", 1, turn_of(0), "key")
    log.begin_round(1, 0)
    [taken] = log.sessions_of(1)
    assert len(taken.turns) == 1
    assert len(log.turns(session(1))) == 2


def test_sessions_older_than_the_bound_are_not_trained(log):
    for number in (1, 2):
        rate(log, number, version=number - 1)
        log.begin_round(1, 9)
        promote(log, number)
    for number, version in ((11, 0), (12, 1), (13, 2)):  # two, one and no promotion ago
        rate(log, number, version=version)
    assert log.version == 2
    log.begin_round(2, 1)
    assert [each.session for each in log.sessions_of(3)] == [session(12), session(13)]
    assert log.counts()["num_stale"] == 1


def test_feedback_of_an_excluded_client_is_stored_and_not_trained(log):
    rate(log, 1, client="eve")
    rate(log, 2, client="ada")
    assert log.begin_round(2, 0, ["eve"]) is None
    assert log.begin_round(1, 0, ["eve"]).number == 1
    assert [each.client for each in log.sessions_of(1)] == ["ada"]
    counts = log.counts()
    assert (counts["num_feedback"], counts["num_excluded"]) == (2, 1)


def test_a_decision_is_made_once(log):
    rate(log, 1)
    log.begin_round(1, 0)
    promote(log, 1)
    log.end_round(1, "rolled_back", "d", {}, {})
    assert (log.round(1).state, log.round(1).checksum, log.version) == ("promoted", "c", 1)
    assert log.open_round() is None


def test_stored_traffic_survives_the_process(tmp_path):
    first = SessionLog(tmp_path)
    rate(first, 1)
    first.begin_round(1, 0)
    second = SessionLog(tmp_path)  # the first one is never closed, as after a kill
    assert second.open_round().number == 1
    assert second.sessions_of(1)[0].turns[0].completion.logprobs == (-0.5,)
    assert second.add_feedback(Feedback(session(1), 0.0)) == "late"
    with pytest.raises(KeyError):
        second.add_feedback(Feedback(session(2), 0.0))
    second.close()
    first.close()


def test_a_client_that_contradicts_two_others_is_left_out_where_the_config_says_so(log):
    def round_of(num_taken, first, **bound):
        for number, client, reward in ((0, "ada", 1.0), (1, "bob", 2.0), (2, "eve", -100.0)):
            log.add_turn(session(first + number), client, 0, turn_of(0), f"key {first}")
            log.add_feedback(Feedback(session(first + number), reward, client=client))
        return log.begin_round(num_taken, 0, **bound)

    first = round_of(3, 10)
    # (3/7) ** 1 = 0.43; ada and bob have one voice for and one against them.
    assert first.report["agreement"] == [
        {"client": "eve", "agreed": 0, "contradicted": 1, "chance": 0.43}
    ]
    assert first.unreliable_clients == []
    second = round_of(3, 20, max_false_exclusion=0.1)  # (3/7) ** 2 = 0.18
    assert second.unreliable_clients == []
    third = round_of(2, 30, max_false_exclusion=0.1)  # (3/7) ** 3 = 0.079
    assert third.unreliable_clients == ["eve"]
    assert [each.client for each in log.sessions_of(3)] == ["ada", "bob"]
    assert log.counts()["num_unreliable"] == 1
    log.add_verdicts({"key 10": False, "key 20": False})  # the judge agrees with eve
    fourth = round_of(3, 40, max_false_exclusion=0.1)
    assert fourth.unreliable_clients == []
    assert fourth.report["agreement"][-1] == {
        "client": "eve", "agreed": 2, "contradicted": 2, "chance": 1.0
    }  # fmt: skip


def test_feedback_without_a_name_is_neither_compared_nor_compared_with(log):
    for number, (client, reward) in enumerate(
        [("ada", 1.0), ("", 1.0), ("", 1.0), ("eve", 0.0), ("", 0.0)]
    ):
        rate(log, number, client=client, reward=reward)
    assert log.agreements() == []
