import http.client
import json
import re
import shutil
import socket
import subprocess
from contextlib import ExitStack, suppress
from importlib.resources import files
from pathlib import Path

import pytest
from loguru import logger
from logview_fixtures import HOSTILE, Client, byte_tokenizer, write_run
from record_fixtures import episode, group_of

from ajet.core.errors import ConfigError
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.warning_log import RunWarning, WarningLog
from ajet.read.logview.run_page import RunPage
from ajet.read.logview.server import MAX_STREAMS, LogviewServer, is_loopback_host


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "math")


@pytest.fixture
def client(folder):
    with LogviewServer([folder.path], port=0) as server:
        yield Client(server)


def test_900_half_open_connections_neither_stay_nor_keep_others_out(folder):
    with LogviewServer([folder.path], port=0, header_s=1.0) as server, ExitStack() as clients:
        host, port = server.url.removeprefix("http://").split(":")
        opened = [
            clients.enter_context(socket.create_connection((host, int(port)), timeout=60))
            for _ in range(900)
        ]
        for each in opened:
            with suppress(ConnectionError):  # it may have made room for a later one
                each.sendall(b"GET / HTTP/1.1\r\nx-slow: ")
        assert Client(server).json("/api/run")["name"] == "math"
        for each in opened:
            with suppress(ConnectionError):
                assert each.recv(1) == b""


def ids(page):
    return [row["episode_id"] for row in page["episodes"]]


def test_the_run_says_what_can_be_filtered(client):
    run = client.json("/api/run")
    assert (run["name"], run["count"]) == ("math", 4)
    assert (run["statuses"], run["modes"]) == (["ok", "timeout"], ["eval", "train"])
    assert run["has_tokenizer"] is False


def test_the_list_is_newest_first_and_pages(client):
    first = client.json("/api/episodes?limit=3")
    assert ids(first) == ["000002-train-0000-00", "000001-eval-0000-00", "000001-train-0000-01"]
    second = client.json(f"/api/episodes?limit=3&after={first['next']}")
    assert (ids(second), second["next"]) == (["000001-train-0000-00"], None)


def test_the_list_filters(client):
    assert ids(client.json("/api/episodes?status=timeout")) == ["000002-train-0000-00"]
    assert ids(client.json("/api/episodes?mode=eval&status=")) == ["000001-eval-0000-00"]
    assert ids(client.json("/api/episodes?text=ALERT")) == ["000001-train-0000-01"]
    assert client.json("/api/episodes?is_success=true&mode=train")["count"] == 1


def test_a_filter_that_is_no_number_is_a_bad_request(client):
    response, content = client.get("/api/episodes?min_reward=lots")
    assert response.status == 400
    assert "min_reward='lots' is not a number" in content


def test_an_episode_shows_each_sampled_token_with_its_numbers(client):
    shown = client.json("/api/episode/000001-train-0000-00")
    first, second = shown["turns"]
    assert first["prompt"]["ids"] == list(range(100, 110))
    assert first["sampled"] == {
        "ids": [7, 8, 9],
        "texts": ["<7>", "<8>", "<9>"],  # no tokenizer: ids
        "logprobs": [-0.5, -0.25, -2.0],
        "advantages": [1.0, 1.0, 1.0],
        "mask": [1, 1, 1],
        **dict.fromkeys(("policy_logprobs", "ratios", "entropies", "kl")),  # no update
        "cuts": {},
    }
    # the second prompt is the first prompt, its tokens and three new ids
    assert (second["base_turn"], second["prompt_kept"]) == (0, 13)
    assert second["prompt"]["ids"] == [50, 51, 52]
    assert [m["episode_id"] for m in shown["members"]] == [
        "000001-train-0000-00",
        "000001-train-0000-01",
    ]


def test_tokens_have_texts_when_the_run_has_a_tokenizer(folder):
    folder.tokenizer.mkdir()
    byte_tokenizer().save(str(folder.tokenizer / "tokenizer.json"))
    with LogviewServer([folder.path], port=0) as server:
        shown = Client(server).json("/api/episode/000001-train-0000-00")
    assert "".join(shown["turns"][0]["prompt"]["texts"]) == "defghijklm"  # bytes 100 to 109


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("episode/nothing", "no episode 'nothing'"),
        ("nothing", "/api/nothing: no such page"),
        ("steps?run=nothing", "no run 'nothing'"),
        ("difference?left=math:9", "no start 'math:9'"),
        ("task?task_id=nothing", "no task 'nothing' in this run"),
        ("group?step=1&group_id=nothing", "no group 'nothing' in this step"),
        ("token?episode=000001-train-0000-00&turn=9", "no turn 9 in this episode"),
        ("compare?task_id=task-0&left=nothing", "no episode 'nothing' of this task"),
    ],
)
def test_what_is_not_there_is_named(client, path, told):
    response, content = client.get(f"/api/{path}")
    assert (response.status, json.loads(content)) == (404, {"error": told})


class BrokenPage(RunPage):
    def steps(self):
        return {}["a key that the code expects"]


def test_a_mistake_of_the_page_itself_is_an_error_of_the_server_and_logged(folder):
    lines = []
    sink = logger.add(lines.append)
    with LogviewServer([folder.path], port=0) as server:
        server.pages.by_name["math"] = BrokenPage(folder)
        response, content = Client(server).get("/api/steps")
    logger.remove(sink)
    assert response.status == 500 and "KeyError: 'a key that the code expects'" in content
    assert "in steps" in lines[0] and "KeyError" in lines[0]


def test_a_file_that_is_no_part_of_the_page_is_not_found(client):
    assert client.get("/static/../server.py")[0].status == 404
    assert client.get("/static/%2e%2e/server.py")[0].status == 404


def test_a_site_that_points_its_name_at_this_machine_gets_nothing(client):
    for path in ("/", "/static/app.js", "/api/episodes"):
        response, content = client.get(path, host="evil.example")
        assert response.status == 403
        assert "000001" not in content
    assert client.get("/api/run", host="localhost:9999")[0].status == 200


def test_another_sites_script_gets_nothing_and_this_pages_own_gets_its_data(client):
    refused = client.get("/api/episodes", origin="https://evil.example")
    assert (refused[0].status, "000001" in refused[1]) == (403, False)
    assert client.get("/api/episodes", origin="null")[0].status == 403
    assert client.get("/api/episodes", origin=f"http://{client._address}")[0].status == 200


def test_several_runs_are_told_apart_by_as_much_of_their_paths_as_it_takes(tmp_path):
    paths = [write_run(tmp_path / name).path for name in ("a/math", "b/math")]
    with LogviewServer([*paths, paths[0]], port=0) as server:
        client = Client(server)
        assert [run["name"] for run in client.json("/api/runs")["runs"]] == ["a/math", "b/math"]
        assert client.json("/api/run?run=b/math")["folder"] == str(paths[1])
        assert client.json("/api/run")["folder"] == str(paths[0])
        assert client.get("/api/run?run=c")[0].status == 404


def test_the_stages_of_a_run_have_its_name_unless_it_is_the_folder_that_is_shown(tmp_path):
    for name in ("calling/supervised", "calling/reinforcement", "math"):
        write_run(tmp_path / name)

    def names(root):
        with LogviewServer([root], port=0) as server:
            return [run["name"] for run in Client(server).json("/api/runs")["runs"]]

    assert names(tmp_path) == ["math", "calling/reinforcement", "calling/supervised"]
    assert names(tmp_path / "calling") == ["reinforcement", "supervised"]


def test_runs_that_begin_later_are_listed_and_keep_the_names_of_the_others(tmp_path):
    write_run(tmp_path / "a" / "math")
    with LogviewServer([tmp_path], port=0) as server:
        client = Client(server)
        assert [run["name"] for run in client.json("/api/runs")["runs"]] == ["math"]
        (tmp_path / "begins").mkdir()
        (tmp_path / "begins" / "episodes.sqlite").write_bytes(b"")
        write_run(tmp_path / "b" / "math")
        write_run(tmp_path / "lake")
        assert [run["name"] for run in client.json("/api/runs")["runs"]] == [
            "math",
            "lake",
            "b/math",
        ]
        assert client.json("/api/run?run=b/math")["folder"] == str(tmp_path / "b" / "math")


def test_an_open_page_is_told_of_each_step_and_ends_with_the_server(folder):
    with LogviewServer([folder.path], port=0) as server:
        stream = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        stream.request("GET", "/api/events")
        answer = stream.getresponse()
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert answer.readline() == b": looking\n"
        folder.metrics_jsonl.write_text('{"step": 7, "reward/mean": 0.5}\n')
        lines = iter(answer.readline, b"")
        told = next(line for line in lines if line.startswith(b"data:"))
        assert json.loads(told.removeprefix(b"data:")) == {"run": "math", "step": 7}
    assert list(lines)[-1:] in ([], [b"\n"])


def test_more_pages_than_the_server_has_streams_for_still_get_their_data(client):
    with ExitStack() as opened:
        for _ in range(MAX_STREAMS):
            stream = opened_stream(client)
            opened.callback(stream.close)
            assert stream.getresponse().readline() == b": looking\n"
        assert client.get("/api/events")[0].status == 503
        assert client.json("/api/episodes")["count"] == 4
    # those who have left make room
    while (stream := opened_stream(client)).getresponse().status == 503:
        stream.close()
    stream.close()


def opened_stream(client):
    stream = http.client.HTTPConnection(client._address, timeout=60)
    stream.request("GET", "/api/events")
    return stream


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "LOCALHOST", "[::1]:80", "[::1]"])
def test_a_host_of_this_machine_is_known(host):
    assert is_loopback_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil",
        "a@localhost:x",
        "127.0.0.1:1@evil",
    ],
)
def test_another_host_is_refused(host):
    assert not is_loopback_host(host)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["GET http://[ HTTP/1.0", "Host: localhost"], 400),
        (["GET /api/runs HTTP/1.0", "Host: localhost", "Origin: http://["], 403),
        (["GET /api/runs HTTP/1.0", "Host: localhost", "Host: evil.example"], 403),
        (["GET /api/runs HTTP/1.0", "Host: localhost", "Host: localhost"], 200),
    ],
)
def test_a_malformed_request_is_answered_with_a_status(client, lines, status):
    host, _, port = client._address.partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = connection.makefile("rb").readline()
    assert answer.split()[1] == str(status).encode()


def test_stored_markup_reaches_the_page_as_json_only(client):
    response, _ = client.get("/api/episode/000001-train-0000-01")
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert client.json("/api/episode/000001-train-0000-01")["query"] == HOSTILE
    page, html = client.get("/")
    assert "alert(" not in html
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy
    assert "unsafe" not in policy


STATIC = files("ajet.read.logview").joinpath("static")


def test_the_page_puts_text_in_as_text_and_loads_nothing_from_elsewhere():
    own = [path for path in Path(str(STATIC)).rglob("*.*") if "vendor" not in path.parts]
    assert {"index.html", "app.js", "episode.js"} <= {path.name for path in own}
    for file in own:
        source = file.read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", source
        )
        assert not re.search(r"https?://|@import", source)
        assert not re.search(r"\son\w+=", source)  # inline handlers, which the policy forbids


def test_every_part_of_the_page_is_served_and_has_its_kind(client):
    kinds = {".js": "text/javascript", ".css": "text/css"}
    served = [path for path in Path(str(STATIC)).rglob("*") if path.suffix in kinds]
    for path in served:
        response, content = client.get(f"/static/{path.relative_to(str(STATIC)).as_posix()}")
        assert response.headers["Content-Type"] == f"{kinds[path.suffix]}; charset=utf-8"
        assert content == path.read_text(encoding="utf-8")


def test_the_types_of_the_page_fit():
    tsc = shutil.which("tsc")
    if tsc is None:
        pytest.skip("no tsc (npm: typescript) to check the page's types with")
    folder = str(Path(__file__).parent)
    done = subprocess.run([tsc, "-p", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def warn(folder, *said):
    log = WarningLog(folder.warnings_jsonl)
    for each in said:
        log.add(RunWarning(*each, {"share": float("nan")}))
    log.close()


def test_the_run_has_its_warnings_and_a_row_that_cannot_be_read_is_left_out(
    client, folder, warnings
):
    assert client.json("/api/run")["warnings"] == []
    warn(folder, (3, "no_signal", "no group of step 3 has signal"), (9, "truncation", HOSTILE))
    rows = (b"\xff\xfe", b"[1]", b'{"step": "4", "name": {}, "text": 1}', b'{"step": 10, "na')
    with folder.warnings_jsonl.open("ab") as file:
        file.write(b"\n".join(rows))
    assert client.json("/api/run")["warnings"] == [
        {"step": 3, "name": "no_signal", "text": "no group of step 3 has signal"},
        {"step": 9, "name": "truncation", "text": HOSTILE},
    ]
    assert warnings == []  # the page asks every few seconds, and the terminal belongs to the run


def test_only_reading_is_answered(client, folder):
    before = folder.episodes_db.read_bytes()
    for method in ("POST", "PUT", "DELETE"):
        assert client.get("/api/episodes", method=method)[0].status == 405
    assert folder.episodes_db.read_bytes() == before


def test_the_page_follows_a_run_that_goes_on(tmp_path):
    path = tmp_path / "run"
    with LogviewServer([path], port=0) as server, RunFolder.open(path) as folder:
        client = Client(server)
        assert client.json("/api/episodes") == {
            "episodes": [],
            "next": None,
            "count": 0,
            "not_searched": 0,
        }
        with EpisodeStore(folder.episodes_db) as store:
            store.write(1, [group_of(episode())])
            assert client.json("/api/episodes")["count"] == 1
            store.write(2, [group_of(episode(step=2))])
            assert client.json("/api/run")["count"] == 2


def test_a_port_in_use_is_one_line_and_without_a_port_another_is_taken(folder):
    with LogviewServer([folder.path], port=0) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match=f":{port}: Address already in use; choose another"):
            LogviewServer([folder.path], port=port)


def test_the_server_listens_on_the_loopback_interface_alone(client):
    assert client._address.startswith("127.0.0.1:")


def test_forks_are_pages_of_their_run_and_nothing_else_is(folder, client, tmp_path):
    name = "000001-eval-0000-00-turn-0"
    write_run(folder.forks / name)
    assert client.json(f"/api/run?run=math/forks/{name}")["count"] == 4
    assert client.json("/api/runs")["runs"][0]["name"] == "math"
    write_run(tmp_path / "other")
    (folder.forks / "linked").symlink_to(tmp_path / "other")
    for wrong in ("absent", "..", ".", "", "linked", f"{name}/logs", "../../other"):
        assert client.get(f"/api/run?run=math/forks/{wrong}")[0].status == 404
    assert client.get(f"/api/run?run=other/forks/{name}")[0].status == 404
