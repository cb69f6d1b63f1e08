"""MiniWoB's pages in a real Chromium: a page with its interface, and the package where it is there;
skipped where no Chromium is installed."""

import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from ajet.core.environment.registry import environment_maker
from ajet.core.errors import ConfigError, EnvironmentFault
from ajet.environments.check import EnvironmentCheck
from ajet.environments.miniwob import chromium
from ajet.environments.miniwob.environment import page_seed

PAGE = Path(__file__).with_name("miniwob_page.html")
LISTED = [
    '[1] checkbox "sure"',
    "[2] text",
    "some",
    '[3] b "bold"',
    "words",
    '[4] select "red" of red, blue',
    '[5] button "a"',
    '[6] button "b"',
    '[7] button "c"',
    '[8] button "d"',
]


def maker_of(name="click-letter", **config):
    return environment_maker(f"miniwob:{name}", config, [], "custom_envs.x.env_type")


def right_and_wrong(observation):
    """The numbers of the right button and of another one."""
    right = 5 + "abcd".index(re.findall(r'^Click "(.)"', observation)[0])
    return right, 5 + (right - 4) % 4


@pytest.fixture
def browser():
    if not any(map(shutil.which, chromium.EXECUTABLES)):
        pytest.skip(f"no browser ({', '.join(chromium.EXECUTABLES)})")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of this name with the page above as its only task."""
    pages = tmp_path / "miniwob" / "html" / "miniwob"
    pages.mkdir(parents=True)
    (tmp_path / "miniwob" / "__init__.py").write_text("raise ImportError('nobody imports it')")
    shutil.copy(PAGE, pages / "click-letter.html")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.fixture
def env(browser, package):
    environment = maker_of()()
    yield environment
    environment.close()


def test_a_missing_package_is_one_line_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "miniwob", None)
    with pytest.raises(ConfigError, match=r"pip install --no-deps miniwob$"):
        maker_of()()


@pytest.mark.usefixtures("package")
def test_a_missing_browser_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"PATH has no chromium, .*: install one"):
        maker_of()()


@pytest.mark.usefixtures("package", "browser")
def test_mistakes_are_one_line():
    with pytest.raises(ConfigError, match="no task of this name; did you mean 'click-letter'"):
        maker_of("click-leter")()
    with pytest.raises(ConfigError, match="no task of this name; there are click-letter"):
        maker_of("../secret")()
    with pytest.raises(ConfigError, match="max_text_chars is 0"):
        maker_of(max_text_chars=0)()


def test_the_same_seed_is_the_same_page_and_another_seed_is_another(env):
    first, info = env.reset(seed=1)
    assert first.splitlines()[1:] == LISTED
    assert env.reset(seed=1) == (first, info)
    assert env.reset(seed=2)[0] != first


def test_the_splits_share_no_instance():
    train, validation = (
        {page_seed(seed, split) for seed in range(200)} for split in ("train", "validation")
    )
    assert len(train) == len(validation) == 200
    assert not train & validation


@pytest.mark.parametrize("is_right", [True, False])
def test_a_click_on_the_right_button_earns_1_and_on_another_minus_1(env, is_right):
    right, wrong = right_and_wrong(env.reset(seed=1)[0])
    text, reward, is_over, is_cut, info = env.step(f"click {right if is_right else wrong}")
    assert (reward, is_over, is_cut) == (1.0 if is_right else -1.0, True, False)
    assert info["metrics"] == {"success": is_right, "action_is_valid": True}
    assert text == f"The task is over, with reward {reward:g}."
    assert env.step("click 1")[1:4] == (0.0, True, False)


def test_the_reward_does_not_depend_on_the_time_taken(env):
    right, _ = right_and_wrong(env.reset(seed=1)[0])
    for _ in range(4):  # the clock moves by seconds, the page's limit is 10 ms
        env.step("click 2")
    assert env.step(f"click {right}")[1] == 1.0


@pytest.mark.parametrize("last", ["click 1", "?!"])
def test_the_last_action_of_an_unfinished_task_earns_minus_1(browser, package, last):
    env = maker_of(max_actions=2)()
    env.reset(seed=1)
    assert env.step("click 1")[1:4] == (0.0, False, False)
    text, reward, is_over, _, info = env.step(last)
    assert (text, reward, is_over) == (
        "No actions left. The task is over, with reward -1.", -1.0, True)  # fmt: skip
    assert info["metrics"] == {"success": False, "action_is_valid": last == "click 1"}
    env.close()


@pytest.mark.parametrize(
    "action",
    ["", "?!", "click", "click 0", "click 9", "click 5 now", "type 1 x", "type 5 x", "select 1 red",
     "select 4 green", "click 1\nclick 2", "click ٣"],
)  # fmt: skip
def test_an_invalid_action_leaves_the_state_as_it_was(env, action):
    first, info = env.reset(seed=1)
    text, reward, is_over, _, after = env.step(action)
    assert (reward, is_over) == (0.0, False)
    metrics = {"success": False, "action_is_valid": False}
    assert after == {"metrics": metrics, "state_key": info["state_key"]}
    assert text == f"{env.instruction}\n{first}"


def test_typing_replaces_the_text_and_selecting_chooses_the_option(env):
    env.reset(seed=1)
    assert '[2] text "Ada" focused' in env.step("type 2 Ada")[0]
    assert '[2] text "Bob 1" focused' in env.step("type 2 Bob 1")[0]
    assert '[4] select "blue" of red, blue' in env.step("select 4 blue")[0]
    assert '[1] checkbox "sure" checked focused' in env.step("click 1")[0]


def test_an_element_that_is_covered_cannot_be_clicked(env):
    env.reset(seed=1)
    cover = "position: fixed; inset: 0"
    env._tab.evaluate(f"document.body.lastElementChild.insertAdjacentHTML('afterend', "
                      f"'<div style=\"{cover}\"></div>')")  # fmt: skip
    assert env.step("click 5")[4]["metrics"]["action_is_valid"] is False


def test_episodes_at_the_same_time_do_not_share_a_page(browser, package):
    make = maker_of()

    def boxes_after(seed):
        environment = make()
        environment.reset(seed=seed)
        shown = environment.step("click 1" if seed % 2 else f"type 2 {seed}")[0]
        environment.close()
        return str(shown).splitlines()[1:3]

    with ThreadPoolExecutor(4) as pool:
        shown = list(pool.map(boxes_after, range(6)))
    for seed, lines in enumerate(shown):
        checked = ['[1] checkbox "sure" checked focused', "[2] text"]
        assert lines == (checked if seed % 2 else [LISTED[0], f'[2] text "{seed}" focused'])


def test_a_killed_browser_is_a_fault_of_the_environment_and_the_next_reset_starts_another(env):
    first, _ = env.reset(seed=1)
    killed = chromium._started[-1]
    killed.process.kill()
    killed.process.wait()
    with pytest.raises(EnvironmentFault, match="Chromium ended"):
        for _ in range(100):  # its end may be noticed a moment later
            env.step("click 1")
    assert env.reset(seed=1)[0] == first
    assert chromium._started[-1] is not killed


def test_a_crashed_tab_is_a_fault_and_other_episodes_continue(env):
    other = maker_of()()
    first, _ = other.reset(seed=1)
    env.reset(seed=1)
    with pytest.raises(EnvironmentFault, match="the tab crashed"):
        env._tab._call("Page.crash")
    env.close()
    assert other.step(f"click {right_and_wrong(first)[0]}")[1] == 1.0
    other.close()


@pytest.mark.usefixtures("package", "browser")
def test_the_check_of_environments_finds_no_fault():
    assert EnvironmentCheck(maker_of(), 3, 2, seed=0, max_steps=4).run().faults == []


@pytest.mark.usefixtures("browser")
@pytest.mark.parametrize("task", ["click-button", "click-dialog-2", "email-inbox"])
def test_the_packages_own_tasks_can_be_played(task):
    if find_spec("miniwob") is None:
        pytest.skip("pip install --no-deps miniwob")
    assert EnvironmentCheck(maker_of(task), 3, 2, seed=0, max_steps=4).run().faults == []
