"""Harbor's task folders: their verdicts, an episode, and what is refused."""

import json
from pathlib import Path

import pytest

from ajet.core.config import AjetConfig
from ajet.core.errors import DataError, EnvironmentFault
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.limits import Limit
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.sandbox.runtime import Runtime
from ajet.suites.harbor.agent import HarborAgent, HarborJudge, HarborReader, read_tasks
from ajet.suites.harbor.dockerfile import build_script
from ajet.suites.harbor.machine import check_task, open_machine, read_reward
from ajet.suites.harbor.task_folder import HarborTask, read_folder
from tests.agents.agent_runs import call
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner
from tests.harness.harness_run import sandboxed

TOKENIZER = chat_tokenizer("qwen2_5")
TASKS = Path(__file__).parents[2] / "tutorial/example_harbor/tasks"
VERDICTS = json.loads(Path(__file__).with_name("harbor_verdicts.json").read_text())["verdicts"]
TEST = "cp /app/answer /logs/verifier/reward.txt"


@pytest.fixture
def bwrap():
    sandboxed("bwrap")
    return Runtime("bwrap")


@pytest.fixture
def written(tmp_path):
    """Writes a small task: its test gives the number in /app/answer."""

    def write(toml="", test=TEST, dockerfile="FROM debian\nWORKDIR /app\n", **more):
        folder = tmp_path / "tasks" / "one"
        files = {"task.toml": toml, "instruction.md": "Write 1 to answer.", "tests/test.sh": test}
        files |= {"environment/Dockerfile": dockerfile, "solution/solve.sh": "echo 1 > answer"}
        for name, text in (files | more).items():
            if text is not None:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)
        return folder

    return write


def test_the_ten_tasks_have_harbors_verdicts():
    assert sorted(VERDICTS) == [task.name for task in read_folder(TASKS)]


@pytest.mark.parametrize("sandbox", ["bwrap", "podman"])
@pytest.mark.parametrize("name", VERDICTS)
async def test_solution_and_empty_solution_have_harbors_own_verdict(name, sandbox):
    sandboxed(sandbox)
    report = await check_task(HarborTask.read(TASKS / name), Runtime(sandbox))
    assert report.solution.rewards == VERDICTS[name]["oracle"]
    assert report.empty.rewards == VERDICTS[name]["nop"]
    assert (report.solution.problem, report.empty.problem, report.fault) == (None, None, None)


def test_an_agent_is_not_shown_the_lines_that_mark_a_benchmark(written):
    marks = "<!-- harbor-canary 1 -->\n# Canary 2\n\n"
    [task] = read_tasks(written(**{"instruction.md": f"{marks}# Sort a canary\nNow."}))
    assert task.main_query == "# Sort a canary\nNow."


def config_of(folder, **harness):
    ajet = {"model": {"path": "m"}, "harness": {"sandbox": "bwrap"} | harness}
    return AjetConfig.model_validate({"ajet": ajet, "harbor": {"training": str(folder)}})


async def played(folder, replies, **harness):
    sandboxed("bwrap")
    config = config_of(folder, **harness)
    prompts, left = [], list(replies)

    def reply(prompt, request_id):
        prompts.append(prompt)
        return left.pop(0)

    endpoint = ScriptedEndpoint(TOKENIZER, reply)
    runner = episode_runner(HarborAgent, endpoint, TOKENIZER, HarborJudge(config), config=config)
    [task] = HarborReader(config).get_training_tasks()
    [group] = await runner.rollout(RolloutRequest([task], step=0, mode="eval", num_repeat=1))
    return group.trajectories[0], prompts


async def test_an_agent_solves_a_task_by_its_commands(written):
    commands = [
        call("bash", command="pwd; ls -A . /tests /solution"),
        call("bash", command="false"),
    ]
    episode, prompts = await played(
        written(), [*commands, call("bash", command="echo 1 > answer"), "Done."]
    )
    assert (episode.reward, episode.is_success, episode.status) == (1.0, True, EpisodeStatus.OK)
    assert "Write 1 to answer." in prompts[0]
    # The agent finds neither the tests nor the solution.
    assert "<tool_response>\n/app\n.:\n\n/solution:\n\n/tests:\n\n</tool_response>" in prompts[1]
    assert "<tool_response>\n(exit code 1)\n</tool_response>" in prompts[2]
    assert episode.output.metadata["rewards"] == {"reward": 1.0}


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        (TEST, "the tests wrote neither reward.json nor reward.txt"),
        ("echo good > /logs/verifier/reward.txt", "reward.txt has no number: 'good'"),
        ("sleep 9", "the tests ran longer than 1 s"),
    ],
)
async def test_tests_that_give_no_reward_give_zero_and_say_why(written, test, problem):
    folder = written(toml="[verifier]\ntimeout_sec = 1", test=f"#!/bin/sh\n{test}")
    episode, _ = await played(folder, ["Done."])
    assert (episode.reward, episode.is_success, episode.status) == (0.0, False, EpisodeStatus.OK)
    assert episode.output.metadata["problem"] == problem
    assert episode.output.log_metrics["harbor_without_reward"] == 1.0


async def test_a_reward_that_the_agent_has_written_itself_does_not_count(written):
    forged = call("bash", command="echo 1 > /logs/verifier/reward.json; echo 0.5 > /app/answer")
    episode, _ = await played(written(), [forged, "Done."])
    assert episode.reward == 0.5


async def test_a_container_that_uses_too_much_is_truncated(written):
    eater = call("bash", command="for n in $(seq 90); do sleep 60 & done; wait")
    episode, _ = await played(written(), [eater, "Done."], limits={"num_processes": 20})
    assert (episode.status, episode.reward) == (EpisodeStatus.TRUNCATED, 0.0)
    assert episode.truncation.limit is Limit.HARNESS


async def test_the_tasks_own_time_limit_ends_the_agent_and_its_work_is_tested(written):
    slow = call("bash", command="echo 1 > answer; sleep 3")
    episode, _ = await played(written(toml="[agent]\ntimeout_sec = 1"), [slow, "Done."])
    assert (episode.status, episode.reward) == (EpisodeStatus.TRUNCATED, 1.0)
    assert episode.output.metadata["ended_by"] == "timeout"


async def test_an_image_that_cannot_be_made_is_a_fault_of_the_environment(written):
    folder = written(dockerfile="FROM debian\nRUN echo no such package >&2; exit 100\n")
    with pytest.raises(EnvironmentFault, match="Dockerfile: no such package"):
        sandboxed("bwrap")
        async with open_machine(HarborTask.read(folder), Runtime("bwrap")):
            pass


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ('[[steps]]\nname = "a"', r"needs \[\[steps\]\]"),
        ("[environment]\ngpus = 1", "needs gpus"),
        ('[environment]\nos = "windows"', "needs os 'windows'"),
        ('[agent]\nuser = "me"', "needs an agent's user"),
        ('[verifier]\nenvironment_mode = "separate"', "separate environment_mode"),
        ("[agent]\ntimeout_sec = -1", "agent.timeout_sec: it should be greater than 0"),
        ("[agent", "not TOML"),
    ],
)
def test_a_task_that_ajet_cannot_run_is_refused_by_what_it_needs(written, toml, problem):
    with pytest.raises(DataError, match=problem):
        read_tasks(written(toml=toml).parent)


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("instruction.md", " \n", "is empty"),
        ("environment/docker-compose.yaml", "", "several services"),
        ("trajectory.json", "{}", "does not replay"),
        (".harborignore", "", "does not apply"),
        ("tests/test.sh", None, "tests/test.sh is missing"),
        ("environment/Dockerfile", None, "neither environment/Dockerfile nor"),
        ("task.toml", None, "neither it nor a folder in it has a task.toml"),
    ],
)
def test_a_folder_with_a_file_too_few_or_too_many_is_refused(written, file, text, problem):
    with pytest.raises(DataError, match=problem):
        read_tasks(written(**{file: text}).parent)


async def test_variables_of_ajet_reach_the_parts_that_name_them(written, monkeypatch, bwrap):
    monkeypatch.setenv("AJET_TEST_LEVEL", "2")
    toml = '[environment.env]\nLEVEL = "${AJET_TEST_LEVEL}"\nMODE = "${AJET_NOT_SET:-calm}"'
    async with open_machine(HarborTask.read(written(toml=toml)), bwrap) as machine:
        assert (await machine.run("echo $LEVEL $MODE", timeout_s=9)).output == "2 calm\n"
    task = HarborTask.read(written(toml='[environment.env]\nKEY = "${AJET_NOT_SET}"'))
    with pytest.raises(DataError, match="KEY: the variable AJET_NOT_SET is not set"):
        async with open_machine(task, bwrap):
            pass


DOCKERFILE = """\
# A comment
FROM debian:bookworm-slim
ARG SIZE=3
ENV HERE=/data
ENV NAME="two words" PRICE='$5' \\
    PLACES=/app:$HERE RUNS="`id` $(id)"
ENV OLD one value
WORKDIR /app
WORKDIR inner
COPY ["a.txt", "b.txt", "both/"]
COPY data /data
COPY a.txt renamed.txt
RUN false; printf '%s' "$SIZE" > size
CMD ["bash"]
"""


@pytest.mark.parametrize("sandbox", ["bwrap", "podman"])
async def test_a_dockerfile_makes_the_same_files_with_and_without_images(written, sandbox):
    sandboxed(sandbox)
    data = {f"environment/{name}": name for name in ("a.txt", "b.txt", "data/deep/c.txt")}
    task = HarborTask.read(written(dockerfile=DOCKERFILE, **data))
    show = 'pwd; find /app /data -type f | sort; cat size; echo " $NAME|$PRICE|$OLD|$PLACES|$RUNS"'
    async with open_machine(task, Runtime(sandbox)) as machine:
        shown = await machine.run(show, timeout_s=9)
    assert shown.output.splitlines() == [
        "/app/inner",
        "/app/inner/both/a.txt",
        "/app/inner/both/b.txt",
        "/app/inner/renamed.txt",
        "/app/inner/size",
        "/data/deep/c.txt",
        "3 two words|$5|one value|/app:/data|`id` $(id)",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "FROM other",
        "USER me",
        'ENTRYPOINT ["/start.sh"]',
        'SHELL ["sh"]',
        "ADD https://example.org/x /x",
        "ADD x.tar.gz /x",
        "COPY --from=build /x /x",
        "RUN cat <<EOF > /x",
    ],
)
def test_what_only_an_image_can_do_is_refused_without_one(tmp_path, line):
    (tmp_path / "Dockerfile").write_text(f"FROM debian\n{line}\n")
    with pytest.raises(DataError, match="need"):
        build_script(tmp_path / "Dockerfile", "/workspace/context", None)


@pytest.mark.parametrize(
    ("file", "text", "reward", "problem"),
    [
        ("reward.txt", " 0.5\n", 0.5, None),
        ("reward.json", '{"reward": 0.25, "speed": 9}', 0.25, None),
        ("reward.json", '{"score": 0.75}', 0.75, None),
        ("reward.json", '{"a": 1, "b": 1}', 0.0, "reward.json has a, b, and no `reward`"),
        ("reward.json", '{"reward": "1"}', 0.0, "reward is '1', not a finite number"),
        ("reward.json", "0.5", 0.0, "reward.json has 0.5, not an object of numbers"),
        ("reward.json", "{}", 0.0, "reward.json has nothing, and no `reward`"),
        ("reward.txt", "nan", 0.0, "not a finite number"),
        ("reward.txt", "", 0.0, "reward.txt has no number: ''"),
    ],
)
def test_a_reward_file_is_read_as_harbor_reads_it(file, text, reward, problem):
    verdict = read_reward(text, file)
    assert verdict.reward == reward
    assert verdict.problem is None if problem is None else problem in verdict.problem
