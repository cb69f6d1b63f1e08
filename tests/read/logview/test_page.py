"""What a reader sees and does on the page, in a real browser."""

import json
import re
from dataclasses import replace

import pytest
from browser_fixtures import opened_browser, opened_page, write_trained_run
from logview_fixtures import HOSTILE, write_run
from record_fixtures import advantages_of, episode, group_of, two_turns

from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.metrics import MetricsLogger
from ajet.core.record.run_folder import RunFolder, RunOrigin
from ajet.core.record.summary import RunSummary
from ajet.core.user_code.activity import TimedCall
from ajet.read.logview.server import LogviewServer

MAX_CLICKS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_trained_run(tmp_path_factory.mktemp("runs") / "math")


@pytest.fixture(scope="module")
def url(folder):
    with LogviewServer([folder.path], port=0) as server:
        yield server.url


@pytest.fixture(scope="module")
def browser():
    with opened_browser() as browser:
        yield browser


@pytest.fixture
def page(browser, url):
    with opened_page(browser, url) as page:
        yield page


def shown(page, address):
    """Waits until this page of the run is there."""
    wanted = f"#/math/{address}" if address else "#/math"
    of_page = "document.querySelector('main').dataset.address"
    page.wait_for_function(f"end => location.hash === end && {of_page} === end", arg=wanted)


def visit(page, url, address):
    page.goto(f"{url}/#/math/{address}" if address else f"{url}/#/math")
    shown(page, address)


STEPS, LIST, TASKS = "#nav >> text=Steps", "#nav >> text=Episodes", "#nav >> text=Tasks"
GROUP = "main >> text=How many apples?"
QUESTIONS = {
    "did the model get better on tasks that it did not train on?": (
        [], ".headline", "Held-out success 50.0 % → 75.0 %"),
    "is that more than chance?": ([], "section >> text=interval", "+25.0 points, 95 % interval"),
    "which task did it forget?": ([], "section:has(> h2:text('Fell')) a", "Held out 2?"),
    "what did the run warn of?": ([], "#warnings", HOSTILE),
    "what does the model say now to the task that it forgot?": (
        ["main >> text=Held out 2?", "tr:has(a:text('2')) .cell"], ".verdict", "reward 0.00"),
    "which groups of the newest step have no signal?": (
        [STEPS], "tr.dead", "Why is the lake blue?"),
    "where do the members of a group part?": ([STEPS, GROUP], ".box", "in the prompt of call 2"),
    "which tokens got credit?": (
        [STEPS, GROUP, "text=member 1"], ".sampled[style*='--red']", "\x07"),
    "what was expected and answered?": (
        [STEPS, GROUP, "text=member 2"], ".verdict dl", "expected (answer) #### 42 answered"),
    "which tokens were cut by the clip?": (
        [STEPS, GROUP, "input[value=clip]"], ".sampled[style*='--amber']", "\x07"),
    "where did the policy hesitate most?": (
        [STEPS, GROUP, "input[value=entropy]"], ".sampled[style*='0.55']", "\x07"),
    "which task fell most?": (
        [TASKS, "select[name=mode] >> value=eval"], "#rows tr", "Held out 2? 100.0 % 0.0 % −100"),
    "which tasks were never solved?": (
        [TASKS, "input[name=solved]"], "#rows tr", "Why is the lake blue?"),
    "what did the model answer to a task at first, and in the end?": (
        ["main >> text=Held out 2?"], ".answers",
        "first: step 0, eval reward 1.00 42 last: step 2, eval reward 0.00 42"),
    "where do the answers of the first and the last evaluation of a task part?": (
        ["main >> text=Held out 2?", "text=first and last, side by side"], ".box",
        "do not part"),
    "how did the model go on from this text at other steps?": (
        [STEPS, "tr:has-text('apples') .cell", ".sampled"], ".panel",
        "7 episodes of this task (of 7) came to exactly this text"),
    "what ended the episode that failed?": (
        [LIST, "select[name=status] >> value=timeout", "#rows a.row"], "pre.bad", "deadline of 60"),
}  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_questions_of_a_reader_take_at_most_three_clicks(page, question):
    from playwright.sync_api import expect

    clicks, where, answer = QUESTIONS[question]
    assert len(clicks) <= MAX_CLICKS
    for click in clicks:
        select, _, value = click.partition(" >> value=")
        if value:
            page.select_option(select, value)
            page.wait_for_function("value => location.hash.includes(value)", arg=value)
            if value == "timeout":
                page.wait_for_selector("#rows tr:only-child")
        else:
            page.locator(click).first.click()
    expect(page.locator(where).first).to_contain_text(answer, use_inner_text=True)


def test_the_page_says_what_holds_the_reward_back_as_ajet_why_does(browser, tmp_path):
    from playwright.sync_api import expect

    folder = write_trained_run(tmp_path / "math")
    folder.config_yaml.write_text("ajet: {rollout: {num_repeat: 1}}\n")
    RunOrigin(None, None, str(tmp_path), "2026-11-30T12:00:00", [0]).write(folder.origin_json)
    with LogviewServer([folder.path], port=0) as server, opened_page(browser, server.url) as page:
        page.locator("summary >> text=What holds the reward back?").click()
        cause = page.locator(".why li")
        expect(cause).to_contain_text("adv_estimator grpo compares the episodes of a task")
        cause.locator("a").click()
        expect(page.locator("h1")).to_contain_text("How many pears?")


def test_the_page_says_what_the_run_is_how_far_it_is_and_its_config(browser, tmp_path):
    from playwright.sync_api import expect

    folder = write_trained_run(tmp_path / "math")
    folder.config_yaml.write_text("ajet: {model: {path: /models/small}, seed: 0, backbone: verl}\n")
    identity = {"config": {}, "code": None, "files": None, "rows": None, "versions": None}
    start = {"number": 1, "begun": "2026-03-01T09:30:00", "first_step": 0, "identity": identity}
    end = {"ended": "2026-03-01T10:50:12", "end": "stopped", "last_step": 2, "total_steps": 60}
    folder.attempt(1).mkdir(parents=True)
    attempt = json.dumps({**start, **end, "changes": []})
    (folder.attempt(1) / "attempt.json").write_text(attempt)
    with LogviewServer([folder.path], port=0) as server, opened_page(browser, server.url) as page:
        expect(page.locator("#status")).to_have_text(
            "state stoppedstep 2 of 60began 2026-03-01\u00a009:30took 1\u00a0h 20\u00a0min"
            "model small"
        )
        rows = page.locator("section[aria-label=Config] tbody").first.locator("tr")
        expect(rows).to_have_text(["ajet.backboneverl", "ajet.model.path/models/small"])
        page.locator("summary >> text=All 3 keys").click()
        expect(page.locator("details >> text=ajet.seed")).to_be_visible()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_list_of_many_runs_fits_its_window(browser, tmp_path, width):
    for number in range(8):
        folder = write_trained_run(tmp_path / f"learning_rate_{number}")
        folder.config_yaml.write_text(
            f"ajet: {{model: {{path: Qwen/Qwen2.5-1.5B-Instruct}}, lr: {number}}}\n"
        )
    with LogviewServer([tmp_path], port=0) as server, opened_page(browser, server.url) as page:
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_selector("text=Where the configs differ")
        tables = "[...document.querySelectorAll('.table')]"
        too_wide = page.evaluate(f"{tables}.filter(each => each.scrollWidth > each.clientWidth)")
        assert (len(too_wide), page.locator(".cards tbody tr").count()) == (0, 8)


def test_a_legend_says_the_last_numbers_until_the_mouse_is_over_a_step(page):
    from playwright.sync_api import expect

    figure = page.locator("figure:has(h3:text-is('Reward'))")
    values = figure.locator(".u-legend .u-value")
    expect(values).to_have_text(["2", "0.5", "1", "0"])
    figure.locator(".u-over").hover(position={"x": 2, "y": 50})
    expect(values.first).to_have_text("0")
    page.locator("h1").hover()
    expect(values).to_have_text(["2", "0.5", "1", "0"])


def test_lines_that_an_environment_drew_are_in_a_font_in_which_they_line_up(browser, tmp_path):
    with RunFolder.open(tmp_path / "lake") as folder, EpisodeStore(folder.episodes_db) as store:
        store.write(
            1, [group_of(episode(query="P___\n_O__\nGo!"), episode(member=1, query="Run!"))]
        )
    with LogviewServer([folder.path], port=0) as server, opened_page(browser, server.url) as page:
        fonts = []
        for member, word in enumerate(("Go!", "Run!")):
            page.goto(f"{server.url}/#/lake/episode/000001-train-0000-0{member}")
            said = page.locator(f"p.said >> text={word}").first
            fonts.append(said.evaluate("each => getComputedStyle(each).fontFamily"))
    assert "monospace" in fonts[0] and "monospace" not in fonts[1]


def test_the_page_lists_warnings_as_text_whatever_stands_in_them(page):
    warning = page.locator("#warnings li")
    assert warning.locator("b").inner_text() == "<b onclick=alert(3)>"
    assert warning.locator("span").inner_text() == HOSTILE
    assert warning.locator("script, img, [onclick]").count() == 0


def test_stored_markup_is_text_on_every_page_of_its_episode(page, url):
    of_episode = ("group/2/train/000002-train-0007", "episode/000002-train-0007-00")
    of_task = ("tasks", "task/task-7", "compare/task-7?left=000002-train-0007-00")
    for address in ("step/2", "episodes?status=timeout", *of_episode, *of_task):
        visit(page, url, address)
        assert HOSTILE in page.locator("main").inner_text(), address
        assert page.locator("main script, main img").count() == 0


def test_the_address_holds_what_was_chosen(page, url):
    visit(page, url, "episodes")
    page.fill("input[name=text]", "apples")
    page.wait_for_function("() => document.querySelector('#count')?.innerText === '3 episodes'")
    page.select_option("select[name=is_success]", "true")
    page.wait_for_function("() => document.querySelector('#count')?.innerText === '2 episodes'")
    page.get_by_role("button", name="tokens").click()
    page.wait_for_function("() => location.hash.includes('sort=-tokens')")
    page.reload()
    page.wait_for_function("() => document.querySelector('#count')?.innerText === '2 episodes'")
    assert page.input_value("input[name=text]") == "apples"
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("tokens")
    visit(page, url, "episode/000002-train-0000-00?view=tokens&colour=logprob")
    assert page.locator("input[name=colour]:checked").input_value() == "logprob"
    assert page.locator("[aria-pressed=true]").inner_text() == "every token"


def test_keys_go_to_the_neighbours_and_up_and_back(page, url):
    visit(page, url, "episode/000002-train-0000-00")
    for key, end in (
        ("j", "episode/000002-train-0000-01"), ("ArrowRight", "episode/000002-train-0000-02"),
        ("k", "episode/000002-train-0000-01"), ("u", "group/2/train/000002-train-0000"),
        ("j", "group/2/train/000002-train-0001"), ("u", "step/2"), ("k", "step/1"), ("u", ""),
    ):  # fmt: skip
        page.keyboard.press(key)
        shown(page, end)
    page.go_back()
    shown(page, "step/1")
    page.keyboard.press("/")
    page.wait_for_function("() => document.activeElement.name === 'text'")
    page.keyboard.type("jk")  # letters in a field are no keys of the page
    assert page.input_value("input[name=text]") == "jk"


def test_a_step_that_is_written_while_the_page_is_open_appears(browser, tmp_path):
    folder = write_run(tmp_path / "math")
    with LogviewServer([folder.path], port=0) as server, opened_page(browser, server.url) as page:
        assert page.locator("text=No step has been written yet.").count() == 1
        metrics = MetricsLogger([], folder)
        with EpisodeStore(folder.episodes_db) as store:
            store.write(3, [group_of(episode(step=3, mode="eval", reward=0.0))])
        metrics.log(3, {"reward/mean": 0.5})
        metrics.close()
        page.wait_for_function(
            "() => document.querySelector('#live').innerText === 'math: step 3 is there'"
        )
        page.wait_for_function(
            "() => document.querySelector('.headline')?.innerText.includes('→ 0.0')"
        )
        page.wait_for_selector("figure canvas")


def test_what_a_reader_unfolded_stays_open_when_a_step_is_written(browser, tmp_path):
    from playwright.sync_api import expect

    folder = write_trained_run(tmp_path / "math")
    with LogviewServer([folder.path], port=0) as server, opened_page(browser, server.url) as page:
        figure = page.locator("figure").filter(has=page.get_by_role("heading", name="Reward"))
        figure.locator("summary").click()
        expect(figure.locator("details tbody tr")).to_have_count(3)
        metrics = MetricsLogger([], folder, start_step=3)
        metrics.log(3, {"reward/mean": 0.75})
        metrics.close()
        expect(figure.locator("details tbody tr")).to_have_count(4)


def test_reading_is_no_news_of_a_run(tmp_path):
    folder = write_trained_run(tmp_path / "math")
    with LogviewServer([folder.path], port=0) as server:
        before = server.pages.states()
        server.pages.answer("changes", {"run": "math"})  # SQLite makes files to read the episodes
        assert (folder.path / "episodes.sqlite-wal").exists()
        assert server.pages.states() == before


def test_a_curve_is_there_in_words_and_as_a_table(page):
    from playwright.sync_api import expect

    figure = page.locator("figure").filter(has=page.get_by_role("heading", name="Reward"))
    said = "Reward: reward/mean 0.25 → 0.5 (steps 1 to 2, 0.25 to 0.5)"
    assert figure.locator("[role=img]").get_attribute("aria-label") == said
    figure.locator("summary").click()
    expect(figure.locator("details tbody tr")).to_have_text(["0–", "10.25", "20.5"])


def test_an_episode_without_advantages_says_so_in_a_word(page, url):
    visit(page, url, "episode/000002-eval-0000-00?colour=advantage")
    assert set(page.locator(".word").all_inner_texts()) == {
        "no advantage: nothing of it was trained"
    }
    visit(page, url, "episode/000002-train-0001-00?colour=advantage")
    assert page.locator(".word").first.inner_text() == "advantage 0 on every token: no signal"


WORDS = {
    "ratio": "no ratio: the update did not compute this call",
    "clip": "no clip: the update did not compute this call",
    "entropy": "no entropy: the update did not compute this call",
    "kl": "no KL: the run kept no reference, or the update did not compute this call",
}


@pytest.mark.parametrize("colour", WORDS)
def test_a_colour_without_numbers_is_a_word(page, url, colour):
    visit(page, url, f"episode/000002-train-0001-00?colour={colour}")
    assert set(page.locator(".word").all_inner_texts()) == {WORDS[colour]}


def test_a_token_shows_what_the_update_computed_for_it(page, url):
    visit(page, url, "episode/000002-train-0000-00?colour=ratio")
    page.locator(".sampled").first.hover()
    lines = dict(re.split(r"\s{2,}| (?=none|trained)", line, maxsplit=1) for line in
                 page.locator("#tip").inner_text().splitlines() if "  " in line)  # fmt: skip
    assert lines["ratio"] == "1.3000" and lines["clip"] == "high" and lines["entropy"] == "2.5000"
    assert lines["at update"] == "-0.2376  (p 0.788)"  # -0.5 + log 1.3
    page.mouse.move(0, 0)
    page.keyboard.press("]")  # the first token
    page.keyboard.press("]")
    page.wait_for_function("() => location.hash.endsWith('token=0.1')")
    panel = page.locator(".panel")
    page.wait_for_function("() => document.querySelector('.panel')?.innerText.includes('came to')")
    assert "KL to ref. 0.5000" in panel.inner_text() and "entropy 1.5000" in panel.inner_text()
    page.reload()
    assert panel.locator("h2").inner_text().startswith("token 2 of call 1")
    page.keyboard.press("[")
    page.wait_for_function("() => location.hash.endsWith('token=0.0')")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.hash.includes('token')")
    assert panel.count() == 0


def test_frames_are_stepped_and_played_by_keys(page, url):
    visit(page, url, "episode/000002-train-0000-00?view=frames")
    place, seen = page.locator("#frames [role=status]"), page.locator("#frames pre").first
    assert place.inner_text() == "frame 1 of 2, call 1" and seen.inner_text() == "How many apples?"
    page.keyboard.press("]")
    assert place.inner_text() == "frame 2 of 2, call 2" and seen.inner_text() == "42"
    page.wait_for_function("() => location.hash.endsWith('view=frames&frame=2')")
    page.keyboard.press("p")  # from its end it begins again, and stops there by itself
    assert place.inner_text() == "frame 1 of 2, call 1"
    page.wait_for_function("() => document.querySelector('[name=play]').innerText === 'play'")
    assert place.inner_text() == "frame 2 of 2, call 2"


def test_the_calls_of_several_agents_are_a_tree(browser, tmp_path):
    first, second = two_turns()
    other = replace(first, agent_name="critic")
    again = replace(second, agent_name="critic")  # shares the system prompt's ten ids, then leaves
    ids = (*first.completion.prompt_ids, 60, 61)
    again = replace(again, completion=replace(second.completion, prompt_ids=ids))
    folder = write_run(tmp_path / "math")
    with EpisodeStore(folder.episodes_db) as store:
        store.write(3, [group_of(episode(step=3, turns=(first, other, second, again)))])
    with LogviewServer([folder.path], port=0) as server, opened_page(browser, server.url) as page:
        visit(page, server.url, "episode/000003-train-0000-00")
        lines = page.locator(".tree li").all_inner_texts()
        assert [line.split("\n")[0] for line in lines] == [
            "default call 1 (3 tokens) → call 3 (2 tokens)",
            "critic call 2 (3 tokens)",
            "critic leaves call 2 after 10 tokens: call 4 (2 tokens)",
        ]
        page.locator(".tree button").last.click()
        assert page.evaluate("document.activeElement.dataset.call") == "3"


def test_two_steps_of_a_task_are_chosen_and_kept_in_the_address(page, url):
    visit(page, url, "compare/task-0")
    page.select_option("select[name=left]", "000002-train-0000-01")
    page.wait_for_function("() => location.hash.includes('left=000002-train-0000-01')")
    page.wait_for_function(
        "() => document.querySelector('.lane h3').innerText.includes('step 2, train')"
    )
    page.get_by_role("button", name="swap").click()
    page.wait_for_function("() => location.hash.includes('right=000002-train-0000-01')")
    page.reload()
    page.wait_for_selector(".lanes.pair")
    assert page.locator("select[name=right]").input_value() == "000002-train-0000-01"


def test_the_commands_of_an_episode_are_copied(browser, url, folder):
    (folder.path / "origin.json").write_text(
        '{"yaml": "/my files/math.yaml", "project_dir": null, "current_folder": "/",'
        ' "begun": "2026-01-01T00:00:00", "stop_token_ids": []}'
    )
    with opened_page(browser, url, permissions=["clipboard-read", "clipboard-write"]) as page:
        visit(page, url, "episode/000002-train-0000-00")
        page.get_by_text("Commands for this episode").click()
        page.get_by_role("button", name=re.compile("copy ajet inspect replay .*00$")).click()
        page.get_by_role("button", name=re.compile("copy ajet eval")).wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == (
            f"ajet inspect replay {folder.path} 000002-train-0000-00"
        )
        commands = page.locator(".command code").all_inner_texts()
    assert f"ajet eval --conf '/my files/math.yaml' --checkpoint {folder.path}" in commands
    assert f"ajet inspect fork {folder.path} 000002-train-0000-00 --turn 1 -n 8" in commands


def test_what_nobody_judged_is_shown_by_its_advantages(browser, tmp_path):
    turns = [replace(two_turns()[0], started_s=0.0, ended_s=0.0)]
    members = [episode(step=3, member=n, reward=None, turns=turns) for n in (0, 1)]
    advantages = {m.episode_id: advantages_of(m, 0.5 - n) for n, m in enumerate(members)}
    folder = write_run(tmp_path / "math")
    folder.client_json.write_text("{}")  # a client's data: there is no agent to run again
    with EpisodeStore(folder.episodes_db) as store:
        store.write(3, [group_of(*members)], advantages, [])
    with LogviewServer([folder.path], port=0) as server, opened_page(browser, server.url) as page:
        visit(page, server.url, "step/3")
        assert "success" not in page.locator("main").inner_text()
        cells = page.locator(".cell")
        assert cells.first.get_attribute("title") == "member 1: advantage 0.50, ok"
        visit(page, server.url, "group/3/train/000003-train-0000")
        second = page.locator(".lane h3").last.inner_text()
        assert "advantage -0.50" in second and "reward" not in second
        visit(page, server.url, "episode/000003-train-0000-00")
        assert page.locator(".headline b.bad").count() == 0 == page.locator(".waterfall").count()
        assert "advantage 0.50" in page.locator(".headline").inner_text()
        page.get_by_text("Commands for this episode").click()
        page.get_by_role("button", name=re.compile("copy ajet inspect score")).wait_for()
        assert page.locator(".command").count() == 1


def test_the_time_of_an_episode_is_that_of_its_calls_where_they_are_recorded(browser, tmp_path):
    known = replace(
        episode(),
        began_unix_s=1000.0,
        calls=(TimedCall("tool python", 10.5, 10.75), TimedCall("judge Exact", 12.5, 12.6)),
    )
    with RunFolder.open(tmp_path / "math") as run, EpisodeStore(run.episodes_db) as store:
        store.write(1, [group_of(known, episode(member=1))])
    with LogviewServer([run.path], port=0) as server, opened_page(browser, server.url) as page:
        shown = []
        for member in range(2):
            visit(page, server.url, f"episode/000001-train-0000-{member:02d}")
            page.get_by_text("Time: ").click()
            shown.append(page.locator(".waterfall li").all_inner_texts())
            bars = page.locator(".waterfall .bar").all()
            left = [float(bar.evaluate("bar => bar.style.marginLeft").rstrip("%")) for bar in bars]
            assert left == sorted(left)
    assert shown == [
        ["call 1: 0.50 s", "tool python: 0.25 s", "call 2: 1.50 s", "judge Exact: 0.10 s"],
        ["call 1: 0.50 s", "tools, environment, waiting: 0.50 s", "call 2: 1.50 s"],
    ]


ADDRESSES = (
    "", "step/2?sort=variance", "group/2/train/000002-train-0000",
    "episode/000002-train-0000-00", "episode/000002-train-0000-00?view=tokens",
    "episodes", "task/task-0", "tasks", "episode/000002-train-0000-00?view=frames",
    "tasks?solved=never&sort=-episodes", "compare/task-0",
    "episode/000002-train-0000-00?colour=ratio&token=0.1", "difference",
)  # fmt: skip


def test_nothing_is_wider_than_a_phone(browser, url):
    with opened_page(browser, url) as page:
        page.set_viewport_size({"width": 390, "height": 800})
        for address in ADDRESSES:
            visit(page, url, address)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, address


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, url, scheme):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="no axe to check with"
    )
    found = []
    with opened_page(browser, url, color_scheme=scheme) as page:
        for address in ADDRESSES:
            visit(page, url, address)
            violations = axe.Axe().run(page).response["violations"]
            found += [
                (address, each["id"], node["html"][:120])
                for each in violations
                if each["impact"] in ("serious", "critical")
                for node in each["nodes"]
            ]
    assert found == []


def test_the_forks_of_an_episode_are_one_click_from_it_and_lead_back(browser, tmp_path):
    folder = write_run(tmp_path / "math")
    forked = write_run(folder.forks / "000001-train-0000-00-turn-1")
    interval = {"value": 0.25, "low": 0.05, "high": 0.7}
    table = {"episode": "000001-train-0000-00", "turn": 1, "model": "checkpoint a/step_000003"}
    table |= {"success": interval, "reward": interval, "forks": [1, 2, 3, 4]}
    (forked.path / "fork.json").write_text(json.dumps(table))
    with LogviewServer([folder.path], port=0) as server, opened_page(browser, server.url) as page:
        visit(page, server.url, "episode/000001-train-0000-00")
        forks = page.locator("section[aria-label=Forks]")
        said = (
            "4 forks from call 2 succeed 0.25 [0.05, 0.70], reward 0.25 [0.05, 0.70] by step_000003"
        )
        assert said in forks.inner_text()
        forks.locator("a").click()
        page.wait_for_selector(".lanes")
        page.locator("#crumbs a", has_text="math").first.click()
        page.wait_for_function("() => location.hash === '#/math'")


def test_the_page_of_a_sweep_has_its_values_and_success_in_both_decodings(browser, tmp_path):
    for seed, after in ((0, 0.5), (1, 0.75)):
        folder = write_run(tmp_path / f"seed={seed}")
        folder.config_yaml.write_text(f"ajet: {{seed: {seed}, experiment_name: seed={seed}}}\n")
        rates = {"sampled": {"before": 0.25, "after": after}, "greedy": {"before": 0.5, "after": 1}}
        summary = RunSummary(2, 4, seed, 1.0, 0, 0.25, after, success_by_decoding=rates)
        summary.write(folder.summary_json)
    with LogviewServer([tmp_path], port=0) as server, opened_page(browser, server.url) as page:
        head, *rows = page.locator("[aria-label=Runs] tr").all()
        titles = head.locator("th").all_inner_texts()
        cells = [row.locator("td").all_inner_texts() for row in rows]
        shown = [dict(zip(titles, texts, strict=True)) for texts in cells]
        assert [row["seed"] for row in shown] == ["0", "1"]
        sampled = [row["held out, sampled"] for row in shown]
        assert sampled == ["25.0\u00a0% → 50.0\u00a0%", "25.0\u00a0% → 75.0\u00a0%"]
        assert [row["held out, greedy"] for row in shown] == ["50.0\u00a0% → 100.0\u00a0%"] * 2
