"""The page as one file: what it holds, what it leaves out, and that it asks nobody for anything."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from browser_fixtures import opened_browser, opened_page, write_trained_run
from logview_fixtures import HOSTILE, byte_tokenizer, stored_in, write_run, written
from record_fixtures import episode, group_of, two_turns
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.core.inference.endpoint import Completion
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.run_folder import RunFolder

KEY = "sk-proj-" + "a1B2" * 12


def test_the_file_holds_every_answer_of_the_run_or_those_of_the_chosen_episodes(tmp_path):
    folder, file = write_run(tmp_path / "math"), tmp_path / "run.html"
    folder.config_yaml.write_text(f"ajet: {{model: {{path: {tmp_path}/small}}}}\n")
    size, number = written(folder, file)
    assert (size, number) == (file.stat().st_size, 4)
    whole = stored_in(file)
    assert len([name for name in whole if name.startswith("episode/")]) == 4
    assert "group?group_id=000001-train-0000&mode=train&step=1" in whole
    assert written(folder, file, ["000001-train-0000-01"])[1] == 1
    part = stored_in(file)
    assert [name for name in part if name.startswith("episode/")] == [
        "episode/000001-train-0000-01"
    ]
    assert whole["config"]["keys"][0]["value"] == whole["status"]["model"] == "small"
    assert str(tmp_path) not in json.dumps([whole, part])  # no path of this machine


def test_markup_of_an_episode_is_nowhere_in_the_file_and_its_policy_allows_no_request(tmp_path):
    file = tmp_path / "run.html"
    written(write_run(tmp_path / "math"), file)
    text = file.read_text("utf-8")
    assert HOSTILE not in text and "alert(" not in text
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    assert "default-src 'none'" in policy and "connect-src" not in policy and "http" not in policy
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", text)


def test_secrets_are_replaced_in_texts_and_in_the_tokens_that_spell_them(tmp_path):
    reply = f"the key is {KEY} and 42"
    ids = tuple(reply.encode())
    first, second = two_turns()
    spelled = Completion((100, 101), ids, (-0.5,) * len(ids), "stop", 0)
    turn = replace(first, completion=spelled, reply={"role": "assistant", "content": reply})
    with RunFolder.open(tmp_path / "math") as folder, EpisodeStore(folder.episodes_db) as store:
        folder.tokenizer.mkdir()
        byte_tokenizer().save(str(folder.tokenizer / "tokenizer.json"))
        store.write(1, [group_of(episode(turns=(turn, second)))])
    written(folder, tmp_path / "run.html")
    held = stored_in(tmp_path / "run.html")
    assert KEY not in json.dumps(held)
    sampled = held["episode/000001-train-0000-00"]["turns"][0]["sampled"]
    assert "".join(sampled["texts"][:11]) == "the key is " and sampled["texts"][-7:] == list(
        " and 42"
    )
    hidden = np.array(sampled["ids"][11:-7])
    assert len(hidden) == len(KEY) and (hidden == -1).all()
    assert set(sampled["texts"][11:-7]) == {"***"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["math", "--episodes", "000001"], "give both"),
        ([".", "--export", "a.html"], "one file holds one run, not 2"),
        (["math", "--export", "a.html", "--episodes", "000009"], "no episode '000009'"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, monkeypatch, args, said):
    for name in ("math", "other"):
        write_run(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["view", *args], terminal_width=200)
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert said in line and not (tmp_path / "a.html").exists()


def test_the_command_says_how_large_the_file_is(tmp_path, monkeypatch):
    write_run(tmp_path / "math")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["view", "math", "--export", "a.html"])
    assert re.fullmatch(r"written: a\.html, 0\.\d MB with 4 episodes\n", result.stdout)


def test_a_reader_goes_through_the_file_without_a_server(tmp_path):
    file = tmp_path / "run.html"
    written(write_trained_run(tmp_path / "math"), file)
    with opened_browser() as browser, opened_page(browser, file.as_uri()) as page:
        page.locator("#nav >> text=Steps").click()
        page.locator("main >> text=How many apples?").click()
        page.locator("text=member 1").first.click()
        page.wait_for_selector(".verdict")
        assert "reward 0.00" in page.locator(".verdict").inner_text()
        assert page.locator("#crumbs").inner_text().startswith("math")
        page.locator("#nav >> text=Episodes").click()
        page.select_option("select[name=status]", "timeout")
        page.wait_for_selector("#rows tr:only-child")
        page.locator("button[type=reset]").click()
        page.fill("input[name=text]", "print(6")  # what a model said, not a question
        page.wait_for_function("() => document.querySelector('#count').innerText === '15 episodes'")
        page.locator("#nav >> text=Tasks").click()
        page.select_option("select[name=mode]", "eval")
        page.wait_for_function("() => document.querySelectorAll('#rows tr').length === 4")
        page.locator("#rows a").first.click()
        page.locator("text=first and last, side by side").click()
        page.wait_for_selector(".lanes.pair")
        page.locator("#nav >> text=What changed").click()
        page.wait_for_selector("figure canvas")
        assert page.locator(".headline").inner_text().startswith("Held-out success 50.0")
