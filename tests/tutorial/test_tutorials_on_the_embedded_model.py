"""The tutorials' agents for the math task, a few episodes each on the embedded model.

They are given the AgentScope tutorial's prompt, so they must sample its very tokens: the seeds are
the same, and nothing else decides.
"""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import tutorial
from ajet import assembly
from ajet.cli.launcher import app
from ajet.core.config import load_config
from ajet.core.judge import make_judge
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.reader import make_reader
from ajet.core.trajectory.samples import timelines
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.tools import mcp_session
from tutorial.example_math_agent.workflow import SYSTEM_PROMPT

FOLDER = Path(tutorial.__file__).parent
FRAMEWORKS = [f"example_math_{name}" for name in ("langgraph", "langchain", "openai", "http")]
ALONE = ["example_mcp_agent", "example_token_loop", *FRAMEWORKS]
TASKS, REPEAT = 2, 4


@pytest.fixture(scope="module", autouse=True)
def no_server_is_left():
    yield
    mcp_session.close_all()


@pytest.fixture(scope="module")
def episodes():
    """The episodes of a tutorial; each is run once."""
    known = {}

    def run(name):
        if name not in known:
            known[name] = _episodes(FOLDER / name / "demo.yaml")
        return known[name]

    return run


def _episodes(conf):
    config = load_config(conf, ["ajet.trainer_common.torch_threads=1"], backbone="debug")
    assembly.prepare_torch(config)
    loaded = assembly.load_policy_model(config)
    template = assembly.make_template(loaded)
    engine = assembly.make_engine(config, loaded, template)
    judge = make_judge(config)
    gateway = assembly.make_gateway(config)
    runner = assembly.make_runner(config, engine, template, judge=judge, gateway=gateway)
    tasks = make_reader(config).get_training_tasks()[:TASKS]

    async def rollout():
        groups = await runner.rollout(
            RolloutRequest(tasks, step=0, mode="train", num_repeat=REPEAT)
        )
        await engine.close()
        gateway.close()
        return groups

    return [t for group in run_bounded(rollout()) for t in group.trajectories]


@pytest.mark.parametrize("name", ALONE)
def test_its_agent_runs_and_what_is_sampled_is_what_is_trained(episodes, name):
    found = episodes(name)
    assert {t.status for t in found} <= {EpisodeStatus.OK, EpisodeStatus.TRUNCATED}
    assert any(t.reward for t in found)
    assert any(len(t.turns) == 2 for t in found)
    for t in found:
        trained = sum(int(sum(line.loss_mask)) for line in timelines(t.turns))
        assert trained == t.num_sampled
        assert len(timelines(t.turns)) == 1


def test_the_prompts_show_the_box_with_the_braces_that_a_model_is_to_write():
    config = load_config(FOLDER / "example_mcp_agent" / "demo.yaml", backbone="debug")
    assert config.ajet.rollout.multi_turn.system_prompt == SYSTEM_PROMPT
    assert SYSTEM_PROMPT.endswith("within \\boxed{}.\n")


@pytest.mark.parametrize("name", ["example_mcp_agent", *FRAMEWORKS])
def test_it_samples_the_tokens_of_the_agentscope_agent(episodes, name):
    pairs = zip(episodes("example_math_agent"), episodes(name), strict=True)
    for theirs, ours in pairs:
        assert [t.completion for t in ours.turns] == [t.completion for t in theirs.turns][:2]


def test_the_token_loop_samples_the_tokens_of_the_tool_agent(episodes):
    pairs = zip(episodes("example_mcp_agent"), episodes("example_token_loop"), strict=True)
    for theirs, ours in pairs:
        assert [t.completion for t in ours.turns] == [t.completion for t in theirs.turns]


def test_a_debate_is_several_timelines_of_one_episode(episodes):
    for t in episodes("example_debate"):
        assert t.status is EpisodeStatus.OK
        lines = timelines(t.turns)
        agents = [{t.turns[span.turn_index].agent_name for span in line.spans} for line in lines]
        assert len(lines) >= 2 and set.union(*agents) == {"critic", "solver"}
        assert sum(int(sum(line.loss_mask)) for line in lines) == t.num_sampled


@pytest.mark.parametrize("name", [*ALONE, "example_debate"])
def test_its_config_is_checked_without_a_mistake(name):
    result = CliRunner().invoke(app, ["check", "--conf", str(FOLDER / name / "demo.yaml")])
    assert result.exit_code == 0, result.output
