"""An episode has its instance from its first line to the end of its judging, whatever happens."""

import asyncio
import threading
from functools import partial

import pytest

from ajet import BaseJudge, Task, Workflow, WorkflowOutput
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.environments.env_service.host import EnvServiceHost
from ajet.environments.env_service.judge import EnvServiceJudge
from ajet.environments.env_service.server import make_app
from ajet.environments.guess_number import GuessNumber
from tests.env_server import StubService, serve
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
TASK = Task("train-0", "", env_type="guess_number")
GAME = partial(GuessNumber, high=100, max_guesses=7, show_bounds=False)


@pytest.fixture(scope="module")
def app():
    return make_app({"guess_number": GAME})


@pytest.fixture(scope="module")
def url(app):
    with serve(app) as url:
        yield url


def runner_of(execute, url, judge=None, reply="50", **limits):
    workflow = type("W", (Workflow,), {"execute": execute})
    return episode_runner(
        workflow,
        ScriptedEndpoint(TOKENIZER, lambda *_: reply),
        TOKENIZER,
        judge,
        environments=EnvServiceHost(url, "guess_number", backoff_s=0.001),
        max_failure_rate=1.0,
        **limits,
    )


async def episodes(execute, url, judge=None, num=1, task=TASK, **options):
    runner = runner_of(execute, url, judge, **options)
    (group,) = await runner.rollout(RolloutRequest([task], step=0, mode="train", num_repeat=num))
    return group.trajectories


async def halving(self, workflow_task, tuner):
    """Finds the number by halving, as AgentJet's loop does but for the await."""
    env, low, high, seen = workflow_task.gym_env, 1, 100, []
    for _ in range(30):
        guess = (low + high) // 2
        obs, reward, terminate, _ = await env.step(action={"content": str(guess), "role": "a"})
        seen.append(obs)
        if terminate:
            break
        low, high = (low, guess - 1) if "too high" in obs else (guess + 1, high)
    return WorkflowOutput(metadata={"seen": seen, "reward": reward})


async def test_a_workflow_plays_until_the_environment_ends_it_and_is_judged_by_it(url, app):
    (episode,) = await episodes(halving, url, EnvServiceJudge())
    assert episode.status is EpisodeStatus.OK
    assert (episode.reward, episode.is_success) == (1.5, True)  # 1 + 0.5 * 1
    assert episode.output.metadata["seen"][-1].endswith("is right.")
    assert not app.state.service.instances


async def test_the_question_is_what_the_environment_showed_first(url):
    seen = {}

    async def execute(self, workflow_task, tuner):
        seen["task"] = workflow_task.task
        return WorkflowOutput(reward=0.0)

    (episode,) = await episodes(execute, url)
    assert seen["task"].main_query == "Between 1 and 100. 7 guesses left."
    rules, question = seen["task"].init_messages
    assert rules["content"].startswith("Find a whole number from 1 to 100 in 7 guesses.")
    assert question == {"role": "user", "content": seen["task"].main_query}
    assert episode.workflow_task.task == seen["task"]


async def test_a_task_with_a_question_of_its_own_keeps_it(url):
    async def execute(self, workflow_task, tuner):
        return WorkflowOutput(reward=0.0, metadata={"query": workflow_task.task.main_query})

    own = Task("train-0", "my words", env_type="guess_number")
    (episode,) = await episodes(execute, url, task=own)
    assert episode.output.metadata["query"] == "my words"


async def test_a_task_of_another_kind_has_no_environment(url):
    async def execute(self, workflow_task, tuner):
        return WorkflowOutput(reward=float(workflow_task.gym_env is None))

    (episode,) = await episodes(execute, url, task=Task("t", "q"))
    assert episode.reward == 1.0


async def test_the_episodes_of_a_group_share_the_environments_seed_and_no_instance(url):
    instances = set()

    async def execute(self, workflow_task, tuner):
        instances.add(workflow_task.gym_env.instance_id)
        return await halving(self, workflow_task, tuner)

    (*group,) = await episodes(execute, url, EnvServiceJudge(), num=3)
    assert len({tuple(t.output.metadata["seen"]) for t in group}) == 1
    assert len(instances) == 3


async def test_in_a_thread_the_same_calls_need_no_await(url):
    def play(env):
        obs, reward, terminate, _info = env.step("a guess: 1")
        return [obs, reward, terminate, env.evaluate(), env.get_info()]

    async def execute(self, workflow_task, tuner):
        told = await asyncio.to_thread(play, workflow_task.gym_env)
        return WorkflowOutput(reward=0.0, metadata={"told": told})

    (episode,) = await episodes(execute, url)
    told = episode.output.metadata["told"]
    assert told[:4] == ["1 is too low. 6 guesses left.", 0.0, False, 0.0]
    assert told[4] == {"task_id": "train-0", "instruction": GAME().instruction}


async def test_in_a_thread_with_a_loop_of_its_own_the_calls_are_awaited(url):
    async def play(env):
        return (await env.step("1"))[0]

    async def execute(self, workflow_task, tuner):
        obs = await asyncio.to_thread(asyncio.run, play(workflow_task.gym_env))
        return WorkflowOutput(reward=0.0, metadata={"obs": obs})

    (episode,) = await episodes(execute, url)
    assert episode.output.metadata["obs"] == "1 is too low. 6 guesses left."


async def agentjets_halving(self, workflow_task, tuner):
    """As AgentJet's workflows are written: async, with calls of the environment that block."""
    env, low, high = workflow_task.gym_env, 1, 100
    for _ in range(30):
        guess = (low + high) // 2
        await tuner.chat([{"role": "user", "content": "go on"}])
        obs, _, terminate, _ = env.step(action={"content": str(guess), "role": "assistant"})
        if terminate or tuner.get_context_tracker().context_overflow:
            break
        low, high = (low, guess - 1) if "too high" in obs else (guess + 1, high)
    return WorkflowOutput(metadata={"turns": len(tuner._recorder.turns), "obs": obs})


class AgentJetsJudge(BaseJudge):
    """As AgentJet's judges are written: plain, with a call of the environment that blocks."""

    def compute_reward(self, workflow_task, workflow_output):
        env = workflow_task.gym_env
        raw_reward = env.evaluate(workflow_task.episode_uuid, params={"sparse": False})
        if raw_reward >= 1:
            return 1.0 + raw_reward * 0.5, True
        return 0.0 + raw_reward * 0.5, False


async def test_agentjets_workflow_and_judge_play_without_await(url, app, warnings):
    episodes_of_group = await episodes(agentjets_halving, url, AgentJetsJudge(), num=3)
    for episode in episodes_of_group:
        assert episode.status is EpisodeStatus.OK, episode.error
        assert (episode.reward, episode.is_success) == (1.5, True)
        assert episode.output.metadata["obs"].endswith("is right.")
        assert episode.output.metadata["turns"] == len(episode.turns) > 1
    [line] = [line for line in warnings if "in threads from now on" in line]
    assert "waits without await" in line
    assert not app.state.service.instances


async def test_a_score_may_be_used_without_await(url):
    async def execute(self, workflow_task, tuner):
        score = workflow_task.gym_env.evaluate()
        reward = 1.0 if score else float(score)
        return WorkflowOutput(reward=reward, is_success=score > 0.5)

    (episode,) = await episodes(execute, url)
    assert episode.status is EpisodeStatus.OK, episode.error
    assert (episode.reward, episode.is_success) == (0.0, False)


async def test_content_blocks_of_agentscope_are_an_action(url):
    async def execute(self, workflow_task, tuner):
        blocks = [{"type": "tool_use", "id": "x"}, {"type": "text", "text": "it is 1"}]
        obs, *_ = await workflow_task.gym_env.step({"role": "assistant", "content": blocks})
        return WorkflowOutput(reward=0.0, metadata={"obs": obs})

    (episode,) = await episodes(execute, url)
    assert episode.output.metadata["obs"] == "1 is too low. 6 guesses left."


async def raises(self, workflow_task, tuner):
    raise ValueError("bad")


async def hangs(self, workflow_task, tuner):
    await asyncio.sleep(60)


async def hangs_in_the_environment(self, workflow_task, tuner):
    await workflow_task.gym_env.step("1")
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("execute", "status"),
    [
        (raises, EpisodeStatus.AGENT_ERROR),
        (hangs, EpisodeStatus.TIMEOUT),
        (hangs_in_the_environment, EpisodeStatus.TIMEOUT),
    ],
)
async def test_the_instance_is_released_however_the_episode_ends(execute, status, url, app):
    (episode,) = await episodes(execute, url, episode_timeout_s=0.3)
    assert episode.status is status
    assert not app.state.service.instances


async def test_the_instance_of_a_stopped_run_is_released(url, app):
    runner = runner_of(hangs, url)
    rollout = asyncio.create_task(
        runner.rollout(RolloutRequest([TASK], step=0, mode="train", num_repeat=2))
    )
    while len(app.state.service.instances) < 2:
        await asyncio.sleep(0.005)
    runner.stop()
    (group,) = await rollout
    assert [t.status for t in group.trajectories] == [EpisodeStatus.ABORTED] * 2
    assert not app.state.service.instances


async def test_every_attempt_has_an_instance_of_its_own(url, app):
    seen = []

    async def execute(self, workflow_task, tuner):
        seen.append((workflow_task.gym_env.instance_id, len(app.state.service.instances)))
        raise ValueError("bad")

    (_episode,) = await episodes(execute, url, failure_policy="retry", max_retries=2)
    assert len({name for name, _ in seen}) == 3 and [live for _, live in seen] == [1, 1, 1]
    assert not app.state.service.instances


async def test_a_service_that_is_down_makes_the_episode_an_env_error():
    with StubService(lambda verb, body: None) as stub:
        pass
    (episode,) = await episodes(halving, stub.url, EnvServiceJudge())
    assert episode.status is EpisodeStatus.ENV_ERROR
    assert f"{stub.url}/create: cannot be reached" in episode.error


SEEN = {"state": "go", "reward": 0, "is_terminated": False, "info": {}}


async def test_a_service_that_fails_in_a_step_or_at_the_end_makes_it_an_env_error(warnings):
    def answer(broken):
        return lambda verb, body: (500, {}) if verb in broken else (200, {"data": SEEN})

    with StubService(answer({"step"})) as stub:
        (episode,) = await episodes(halving, stub.url, EnvServiceJudge())
    assert episode.status is EpisodeStatus.ENV_ERROR and "/step: HTTP 500" in episode.error
    assert stub.verbs == ["create", "step", "release"]

    async def idle(self, workflow_task, tuner):
        return WorkflowOutput()

    with StubService(answer({"evaluate", "release"})) as stub:
        (*group,) = await episodes(idle, stub.url, EnvServiceJudge(), num=2)
    assert [t.status for t in group] == [EpisodeStatus.ENV_ERROR] * 2
    assert "/evaluate: HTTP 500" in group[0].error
    (told,) = [line for line in warnings if "stays with the service" in line]
    assert "/release: HTTP 500" in told


async def test_the_seed_and_the_form_of_actions_reach_the_service():
    with StubService(lambda verb, body: (200, {"data": SEEN})) as stub:
        (episode,) = await episodes(halving, stub.url)
    (verb, body), *_ = stub.calls
    assert verb == "create" and body["task_id"] == "train-0"
    seed = episode.workflow_task.seed % 2**31
    assert body["params"] == {"seed": seed, "env_action_preference": "code"}
    assert body["instance_id"].startswith(episode.episode_id)


async def test_a_service_may_name_the_instance_itself():
    seen = SEEN | {"info": {"instance_id": "mine"}}
    with StubService(lambda verb, body: (200, {"data": seen})) as stub:
        await episodes(halving, stub.url)
    assert {body["instance_id"] for verb, body in stub.calls if verb != "create"} == {"mine"}
    assert stub.verbs[-1] == "release"


async def test_a_slow_environment_holds_up_no_other_episode():
    together = threading.Barrier(4, timeout=10)  # nobody passes before all four have come

    def answer(verb, body):
        if verb == "step":
            together.wait()
        return 200, {"data": SEEN | {"is_terminated": True}}

    with StubService(answer) as stub:
        (*_group,) = await episodes(halving, stub.url, num=4)
    assert stub.verbs.count("step") == 4 and not together.broken


async def test_after_the_end_the_environment_refuses(url):
    kept = []

    async def execute(self, workflow_task, tuner):
        kept.append(workflow_task.gym_env)
        return WorkflowOutput(reward=0.0)

    await episodes(execute, url)
    with pytest.raises(Exception, match="is over, its environment released"):
        await kept[0].step("1")


@pytest.mark.parametrize(("score", "expected"), [(1.0, 1.5), (2.0, 2.0), (0.5, 0.25), (0, 0.0)])
async def test_the_judge_rewards_as_agentjet_does(score, expected):
    def answer(verb, body):
        return 200, {"data": score if verb == "evaluate" else SEEN}

    async def execute(self, workflow_task, tuner):
        return WorkflowOutput()

    with StubService(answer) as stub:
        (episode,) = await episodes(execute, stub.url, EnvServiceJudge())
    assert (episode.reward, episode.is_success) == (expected, score >= 1)
    (asked,) = [body for verb, body in stub.calls if verb == "evaluate"]
    assert asked["params"] == {"sparse": False}
