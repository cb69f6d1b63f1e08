"""AgentJet's swarm scripts import unchanged, and their threads run the episodes of `ajet serve`."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from ajet import Task, WorkflowOutput
from ajet.compat.agentjet.tuner_lib.experimental.swarm_client import config_of
from ajet.core.errors import ConfigError, EnvironmentFault
from ajet.environments.env_service.server import make_app
from ajet.environments.guess_number import GuessNumber
from ajet.serve.exchange.exchange import EpisodeExchange
from tests.env_server import serve
from tests.serve.exchange.served import KEY, TASKS, served

MATH = """
from ajet.schema.task import Task, WorkflowOutput
from ajet.copilot.job import AgentJetJob
from ajet.task_reader import RouterTaskReader
from ajet.utils.retry import retry_with_backoff
from ajet.utils.thread_executors import PeriodicDrainThreadPoolExecutor
from ajet.tuner_lib.as_oai_baseurl_apikey import OpenaiBaseUrlAndApiKey
from ajet.tuner_lib.experimental.interchange_utils import SwarmThrottlePolicy
from ajet.default_config.ajet_default import AjetTaskReader, HuggingfaceDatRepo
from ajet.default_config.ajet_config_schema import AjetTaskReader as Later
from ajet.tuner_lib.experimental.as_swarm_client import SwarmClient, SwarmThrottlePolicy
"""
MIXTURE = """
from ajet.copilot.job import AgentJetJob
from ajet.task_reader import HuggingFaceTaskReader, RouterTaskReader
from ajet.utils.env_service_client.env_client_ng import EnvClient
from ajet.default_config.ajet_config_schema import AjetTaskReader, HuggingfaceDatRepo
from ajet.tuner_lib.experimental.swarm_client import SwarmClient
"""
FROZEN_LAKE = """
from ajet.copilot.job import AgentJetJob
from ajet.tuner_lib.experimental.as_swarm_client import SwarmClient, run_episodes_until_all_complete
from ajet.default_config.ajet_default import AjetTaskReader
from ajet.task_reader import RouterTaskReader
"""


def names_of(imports):
    names = {}
    exec(imports, names)
    return names


@pytest.mark.parametrize("imports", [MATH, FROZEN_LAKE, MIXTURE])
def test_the_imports_of_a_swarm_script_are_there(imports):
    assert names_of(imports)["AgentJetJob"]


def test_a_client_reads_its_tasks_as_ajets_readers_do(tmp_path):
    names = names_of(MATH)
    reader, repository = names["AjetTaskReader"], names["HuggingfaceDatRepo"]
    (tmp_path / "rows.jsonl").write_text('{"question": "2+2?", "answer": "4"}\n')
    settings = reader(huggingface_dat_repo=repository(dataset_path=str(tmp_path / "rows.jsonl")))
    dataset = names["RouterTaskReader"]("huggingface_dat_repo", settings)
    [task] = dataset.generate_training_tasks()
    assert (task.main_query, task.metadata["answer"]) == ("2+2?", "4")
    [task] = names_of(MIXTURE)["HuggingFaceTaskReader"](settings).generate_training_tasks()
    assert task.metadata["answer"] == "4"
    dummy = names["RouterTaskReader"](reader_type="random_dummy", reader_config=reader())
    assert "random_number" in next(dummy.generate_training_tasks()).metadata


def test_a_function_is_called_again_after_an_error_and_its_last_error_is_raised():
    calls = []

    @names_of(MATH)["retry_with_backoff"](max_retry=3, backoff_fn=lambda attempt: 0.0)
    def fail_until(number):
        calls.append(number)
        if len(calls) < number:
            raise OSError("not yet")
        return number

    assert (fail_until(2), len(calls)) == (2, 2)
    calls.clear()
    with pytest.raises(OSError, match="not yet"):
        fail_until(9)
    assert len(calls) == 3


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("AJET_SERVE_API_KEY", KEY)


async def test_a_share_of_the_batch_is_what_the_server_lets_a_client_begin():
    names = names_of(MATH)
    # 0.5 of 3 groups: AgentJet's client waits once it has as many as 1.5, which is 2.
    share = names["SwarmThrottlePolicy"](
        ratio=0.5, expected_batch_size=3, expected_num_repeat=1, current_task_id="a"
    )
    async with served(exchange=EpisodeExchange(tasks="client")) as server:
        step = server.rollout(TASKS, num_repeat=1, step=1)

        def begin_until_late():
            swarm = names["SwarmClient"](server.url)
            for name in "abc":
                task = Task(name, f"my {name}")
                episode_uuid, _ = swarm.begin_episode(task=task, throttle_policy=share)
                swarm.end_episode(task, episode_uuid, WorkflowOutput(reward=1.0))
                begun.append(name)

        begun = []
        waiting = asyncio.create_task(asyncio.to_thread(begin_until_late))
        while server.exchange.status()["num_waiting_clients"] == 0:
            await asyncio.sleep(0.01)
        assert begun == ["a", "b"] and server.exchange.status()["num_offered"] == 1
        await server.play(client="another", task={"task_id": "d"})
        await step
        await (next_step := server.rollout(TASKS[:1], num_repeat=1, step=2))
        await waiting
        assert len(next_step.result()) == 1


async def test_a_thread_of_the_scripts_own_begins_the_episode_of_its_argument():
    names = names_of(FROZEN_LAKE)
    async with served(exchange=EpisodeExchange(tasks="client")) as server:
        step = server.rollout(TASKS[:2])

        def program():
            swarm = names["SwarmClient"](server.url)

            def play(task, swarm):
                episode_uuid, _ = swarm.begin_episode(
                    discard_episode_timeout=60, max_episode_time=240
                )
                swarm.end_episode(task, episode_uuid, WorkflowOutput(reward=1.0))

            def rollout(task):
                inner = threading.Thread(target=play, args=(task, swarm), daemon=True)
                inner.start()
                inner.join()

            tasks = [Task(name, f"my {name}") for name in ("a", "a", "b", "b")]
            names["run_episodes_until_all_complete"](tasks, func=rollout)

        await asyncio.to_thread(program)
        groups = await step
    assert sorted(group.trajectories[0].workflow_task.task_id for group in groups) == ["a", "b"]
    assert [t.reward for group in groups for t in group.trajectories] == [1.0] * 4


async def test_a_server_with_a_config_is_restarted_before_its_first_episode_alone():
    names = names_of(MATH)
    async with served(exchange=EpisodeExchange(tasks="client")) as server:
        step = server.rollout(TASKS[:1], num_repeat=1)

        def program():
            swarm, job = names["SwarmClient"](server.url), names["AgentJetJob"]()
            swarm.auto_sync_train_config_and_start_engine(job, force_restart=True)
            episode_uuid, _ = swarm.begin_episode(task=Task("a", "my a"))
            with pytest.raises(RuntimeError, match="force_restart=True would stop a run in step 0"):
                swarm.auto_sync_train_config_and_start_engine(job, force_restart=True)
            swarm.end_episode(Task("a", "my a"), episode_uuid, WorkflowOutput(reward=1.0))

        await asyncio.to_thread(program)
        await step


async def test_agreeing_waits_until_the_step_of_the_last_episode_is_trained():
    names = names_of(MATH)
    async with served(exchange=EpisodeExchange(tasks="client")) as server:
        first = server.rollout(TASKS[:2], num_repeat=1, step=1)
        agreed = []

        def program():
            swarm, task = names["SwarmClient"](server.url), Task("a", "my a")
            assert swarm.get_global_step() == 0
            episode_uuid, _ = swarm.begin_episode(task=task)
            swarm.end_episode(task, episode_uuid, WorkflowOutput(reward=1.0))
            swarm.agree_sync_weight()
            agreed.append(swarm.get_global_step())

        running = asyncio.create_task(asyncio.to_thread(program))
        while not server.exchange.status()["num_ended"]:
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.0)  # two polls of the client
        assert agreed == []
        await server.play(task={"task_id": "b"})
        server.exchange.step_trained(1, await first)
        await running
        assert agreed == [1]


def test_a_job_becomes_a_config_whose_tasks_are_the_clients(tmp_path):
    names = names_of(MATH)
    job = names["AgentJetJob"](
        model="/models/m",
        algorithm="grpo",
        batch_size=64,
        swarm_mode=True,
        swarm_mode_sample_collection_method="rollout_until_all_clients_agree_sync_weight",
        kl_penalty_type="kl",
        layered_summon=True,
    )
    job.config.ajet.trainer_common.test_freq = 10
    config = config_of(job)["ajet"]
    assert config["model"]["path"] == "/models/m" and config["data"]["train_batch_size"] == 64
    assert config["serve"] == {"tasks": "client"}
    assert config["trainer_common"]["total_training_steps"] == 1_000_000
    assert config["trainer_common"]["test_freq"] == 0
    assert config["task_reader"] == {"type": "random_dummy"}
    with pytest.raises(ConfigError, match="a batch is full when its groups are"):
        names["AgentJetJob"](
            swarm_mode_sample_collection_method="rollout_until_any_client_agree_sync_weight"
        )


def test_a_pool_returns_what_it_has_waited_for():
    pool = names_of(MATH)["PeriodicDrainThreadPoolExecutor"](workers=2)
    drained = [pool.submit_with_periodic_drain(fn=lambda n: n, n=n)[1] for n in range(5)]
    assert drained == [[], [], [0, 1], [], [2, 3]]


async def test_the_threads_of_a_script_run_episodes_of_the_task_that_they_get():
    names, tasks = names_of(MATH), [Task("a", "my a"), Task("b", "my b")]
    run_all = names_of(FROZEN_LAKE)["run_episodes_until_all_complete"]
    async with served(exchange=EpisodeExchange(tasks="client")) as server:
        step = server.rollout(TASKS[:2])

        def program():
            swarm = names["SwarmClient"](server.url)

            def rollout(task):
                episode_uuid, _ = swarm.begin_episode(discard_episode_timeout=60)
                swarm.end_episode(
                    task, episode_uuid, WorkflowOutput(reward=float(task.task_id == "a"))
                )
                return task.task_id

            executor = names["PeriodicDrainThreadPoolExecutor"](workers=2)
            wait(
                executor.submit_with_periodic_drain(fn=rollout, task=tasks[0])[0] for _ in range(2)
            )
            assert run_all([tasks[1], tasks[1]], func=rollout) == ["b", "b"]

        await asyncio.to_thread(program)
        groups = await step
    found = {group.trajectories[0].workflow_task.task_id: group for group in groups}
    rewards = {name: [each.reward for each in found[name].trajectories] for name in found}
    assert rewards == {"a": [1.0, 1.0], "b": [0.0, 0.0]}


async def test_a_script_talks_to_an_environment_service_without_waiting_for_its_loop():
    client_class = names_of(MIXTURE)["EnvClient"]
    with serve(make_app({"guess_number": GuessNumber})) as url:
        client = client_class(base_url=f"{url}/")
        assert client.get_env_profile("guess_number", split="train")[:2] == ["train-0", "train-1"]
        # As in AgentJet, a synchronous call within an event loop.
        created = client.create_instance("guess_number", "train-0", "mine")
        assert created["state"][0]["role"] and not created["is_terminated"]
        step = client.step("mine", action={"role": "assistant", "content": "<answer>1</answer>"})
        assert isinstance(step["state"]["content"], str)
        assert isinstance(client.evaluate("mine"), float)
        assert client.release_instance("mine") is True
        with pytest.raises(EnvironmentFault, match="mine"):
            client.step("mine", action={"role": "assistant", "content": "1"})


async def test_a_client_measures_the_model_and_abandons_the_episode_as_agentjets_do():
    names = names_of(MATH)
    async with served(exchange=EpisodeExchange(tasks="client")) as server:
        step = server.rollout(TASKS[:1], num_repeat=1, step=1)

        def program():
            swarm, task = names["SwarmClient"](server.url), Task("held out", "my question")

            def measure(held_out):  # in a thread of a pool, with the task as an argument
                episode_uuid, _ = swarm.begin_episode(episode_type="eval")
                swarm.abort_episode(episode_uuid)

            with ThreadPoolExecutor(1) as pool:
                pool.submit(measure, task).result()
            episode_uuid, _ = swarm.begin_episode(task=task)
            swarm.end_episode(task, episode_uuid, WorkflowOutput(reward=1.0))

        await asyncio.to_thread(program)
        [group] = await step
    assert [t.reward for t in group.trajectories] == [1.0]
