"""Several adapters over one base: what one learns changes nothing of another, bit for bit."""

import asyncio
import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from ajet import assembly
from ajet.backbones.debug.scoring import score_episode
from ajet.backbones.debug.training import fit_debug
from ajet.core.config import load_config
from ajet.core.errors import CheckpointError, ConfigError, RunFailed
from ajet.core.learning.checkpoints import LearnerCheckpoints
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.task import Task
from ajet.core.update.export import export_model
from ajet.core.update.many_adapters import adapter_models
from ajet.core.update.settings import UpdateSettings
from ajet.read.recorded_run import RecordedRun

STEPS = "ajet.trainer_common.total_training_steps"
WORKFLOW = """
from ajet import Workflow, WorkflowOutput


class Answers(Workflow):
    async def execute(self, workflow_task, model_tuner):
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        reply = await model_tuner.chat(messages, agent_name="pro")
        return WorkflowOutput(reward=float(sum(map(str.isdigit, str(reply["content"])))))


class Debate(Workflow):
    async def execute(self, workflow_task, model_tuner):
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        digits = {"pro": 0, "con": 0}
        for turn in range(2 + workflow_task.rollout_index % 2):
            speaker = ("pro", "con")[turn % 2]
            reply = await model_tuner.chat(messages, agent_name=speaker)
            digits[speaker] += sum(map(str.isdigit, str(reply["content"])))
            messages += [reply, {"role": "user", "content": "And you?"}]
        lead = float(digits["pro"] - digits["con"])
        return WorkflowOutput(reward=lead, agent_rewards={"pro": lead, "con": -lead})
"""
CONFIG = """
ajet:
  experiment_name: many
  model: {{path: "embedded:math", device: cpu}}
  task_reader: {{type: jsonl_dataset_file,
    jsonl_dataset_file: {{training: {{file_path: tasks.jsonl}}}}}}
  data: {{train_batch_size: 2, max_prompt_length: 256, max_response_length: 256}}
  rollout:
    user_workflow: workflow.py->{workflow}
    num_repeat: 4
    temperature: 1.0
    max_response_length_in_one_turn: 8
    max_model_len: 512
  task_judge: {{judge_protocol: null}}
  trainer_common:
    total_training_steps: 2
    torch_threads: 1
    use_kl_loss: false
    lora: {{rank: 4, target_modules: [q_proj, down_proj], adapters: {adapters}, adapter_by: {by}}}
    optim: {{lr: 0.01}}
"""
TASKS = [Task(f"{u}{n}", f"What is {n} + {n}?", metadata={"user": u}) for u in "ab" for n in (3, 5)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Makes the config, the learners, an engine over their models, and a runner."""
    folder = tmp_path_factory.mktemp("many")
    (folder / "workflow.py").write_text(WORKFLOW)
    rows = [json.dumps({"query": f"{n} + 1?", "user": "a"}) for n in range(3)]
    (folder / "tasks.jsonl").write_text("\n".join(rows))

    def make(workflow, adapters, by):
        path = folder / f"{workflow}.yaml"
        path.write_text(CONFIG.format(workflow=workflow, adapters=adapters, by=by))
        config = load_config(path, backbone="debug")
        assembly.prepare_torch(config)
        loaded = assembly.load_policy_model(config)
        learners = assembly.make_learner(config, loaded)
        return Parts(config, loaded, learners)

    return make


class Parts:
    def __init__(self, config, loaded, learners):
        self.config, self.loaded, self.learners = config, loaded, learners
        self.template = assembly.make_template(loaded)

    def rollout(self, tasks, models=None):
        return asyncio.run(self._rollout(tasks, models))

    async def _rollout(self, tasks, models):
        models = self.learners.models if models is None else models
        engine = assembly.make_engine(self.config, self.loaded, self.template, adapters=models)
        runner = assembly.make_runner(self.config, engine, self.template, judge=None)
        try:
            return await runner.rollout(RolloutRequest(tasks, step=1, mode="train", num_repeat=4))
        finally:
            await engine.close()

    def update(self, groups):
        batch = self.learners.make_batch(groups)
        return batch, self.learners.update(1, batch)

    def tensors(self, adapter):
        found = self.learners.learners[adapter].state_dict().tensors
        return {name: tensor.clone() for name, tensor in found.items()}


def completions(groups, of):
    """Returns what was sampled for these tasks: ids, log-probabilities, prompts."""
    return [
        (turn.adapter, turn.completion)
        for group in groups
        for t in group.trajectories
        if t.workflow_task.task_id.startswith(of)
        for turn in t.turns
    ]


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


@pytest.fixture(scope="module")
def users(made):
    """Two users, of whom only a's episodes are trained: (parts, groups and tensors before and
    after, the metrics)."""
    parts = made("Answers", "[a, b]", "metadata.user")
    before, tensors = parts.rollout(TASKS), {n: parts.tensors(n) for n in "ab"}
    _, metrics = parts.update(before[:2])
    after, learnt = parts.rollout(TASKS), {n: parts.tensors(n) for n in "ab"}
    return parts, before, after, tensors, learnt, metrics


def test_an_update_of_one_adapter_moves_no_bit_of_another(users):
    _, before, after, tensors, learnt, metrics = users
    assert {turn.adapter for g in before[:2] for t in g.trajectories for turn in t.turns} == {"a"}
    assert completions(after, "b") == completions(before, "b")  # tokens and log-probabilities
    assert completions(after, "a") != completions(before, "a")
    assert equal(learnt["b"], tensors["b"])  # weights and the optimizer's state
    assert not equal(learnt["a"], tensors["a"])
    assert metrics["update/optimizer_steps/a"] == 1.0
    assert not [name for name in metrics if name.endswith("/b")]


def test_the_base_is_in_memory_once_and_stays_as_it_was(users):
    parts, *_ = users
    base = {n: p for n, p in parts.loaded.model.named_parameters()}
    fresh = assembly.load_policy_model(parts.config).model
    for name, weight in fresh.named_parameters():
        assert torch.equal(base[name], weight)
    for model in parts.learners.models.values():
        own = {p.data_ptr() for n, p in model.named_parameters() if "lora_" not in n}
        assert own == {p.data_ptr() for p in base.values()}


def test_an_adapter_learns_the_same_alone_and_with_others(made, users):
    _, before, _, _, learnt, _ = users
    alone = made("Answers", "[a]", "metadata.user")
    alone.update(before[:2])
    assert equal(alone.tensors("a"), learnt["a"])


def test_a_checkpoint_holds_all_adapters_and_gives_each_one_back(made, users, tmp_path):
    parts, _, after, _, learnt, _ = users
    LearnerCheckpoints(parts.learners, parts.loaded, keep=2).save(tmp_path, 1, {})
    path = tmp_path / "step_000001"
    other = made("Answers", "[a, b]", "metadata.user")
    LearnerCheckpoints(other.learners, other.loaded, keep=2).load(path)
    assert all(equal(other.tensors(name), learnt[name]) for name in "ab")

    lora = UpdateSettings.from_config(parts.config).lora
    models = adapter_models(assembly.load_policy_model(parts.config).model, path, lora)
    assert completions(other.rollout(TASKS, models), "") == completions(after, "")
    loaded = assembly.load_policy_model(parts.config)
    export_model(loaded, path, tmp_path / "b", lora=lora, adapter=True, name="b")
    assert (tmp_path / "b" / "adapter_model.safetensors").exists()
    with pytest.raises(ConfigError, match="--name names no adapter: the run's adapters are a, b"):
        export_model(loaded, path, tmp_path / "c", lora=lora)
    fewer = made("Answers", "[a]", "metadata.user")
    with pytest.raises(CheckpointError, match="adapter b is one of its adapters"):
        LearnerCheckpoints(fewer.learners, fewer.loaded, keep=2).load(path)


def test_two_sides_of_an_episode_learn_apart_from_rewards_of_their_own(made):
    parts = made("Debate", "[pro, con]", "agent_name")
    groups = parts.rollout(TASKS[:2])  # waves: con's calls wait for pro's, none for ever
    assert completions(parts.rollout(TASKS[:2]), "") == completions(groups, "")
    batch, metrics = parts.update(groups)
    spoken = [(t, turn) for g in groups for t in g.trajectories for turn in t.turns]
    assert all(turn.adapter == turn.agent_name for _, turn in spoken)
    trained = {name: sum(s.num_trained for s in b.samples) for name, b in batch.adapters.items()}
    for name, number in trained.items():
        of_agent = [turn for _, turn in spoken if turn.agent_name == name]
        assert number == sum(len(turn.completion.token_ids) for turn in of_agent)
    assert metrics["update/trained_tokens"] == sum(trained.values())
    for group in groups:
        best = max(group.trajectories, key=lambda t: t.agent_rewards["pro"])
        worst = min(group.trajectories, key=lambda t: t.agent_rewards["pro"])
        if best.agent_rewards == worst.agent_rewards:
            continue
        pro, con, *_ = batch.advantages[best.episode_id]
        assert (pro > 0).all() and (con < 0).all()
        pro, con, *_ = batch.advantages[worst.episode_id]
        assert (pro < 0).all() and (con > 0).all()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("ajet.trainer_common.lora.rank=0", "lora.rank is 0"),
        ("ajet.kind=supervised", "several learn apart from rewards"),
        ("ajet.trainer_common.lora.adapters=[a,a]", "a name occurs twice"),
        ("ajet.trainer_common.lora.adapters=[a.b]", "lora.adapters"),
        ("ajet.trainer_common.lora.adapter_by=user", "adapter_by"),
        ("ajet.rollout.routing_replay=true", "routing_replay is for one adapter"),
    ],
)
def test_adapter_settings_that_have_no_effect_are_refused_in_one_line(made, users, given, reason):
    parts, *_ = users
    with pytest.raises(ConfigError, match=reason):
        load_config(parts.config.yaml_path, [given])


def test_a_critic_for_each_adapter_is_on_backbone_debug_alone(users):
    path, given = users[0].config.yaml_path, ["ajet.trainer_common.algorithm.adv_estimator=gae"]
    load_config(path, given, backbone="debug")
    with pytest.raises(ConfigError, match="gae needs a critic for each, which backbone debug"):
        load_config(path, given, backbone="verl")


def test_trinity_serves_one_adapter_for_all_calls(users):
    path = users[0].config.yaml_path
    for mode in ("both", "colocate", "train", "explore", "bench"):
        load_config(path, [f"trinity.mode={mode}"], backbone="trinity")
    with pytest.raises(ConfigError, match=r"trinity\.mode serve has one adapter for all calls"):
        load_config(path, ["trinity.mode=serve"], backbone="trinity")


def test_a_call_or_a_task_without_an_adapter_is_an_error_that_lists_them(made):
    parts = made("Debate", "[pro]", "agent_name")
    with pytest.raises(RunFailed, match=r"agent 'con' is of adapter 'con' \(agent_name\)"):
        parts.rollout(TASKS[:1])
    by_user = made("Answers", "[b]", "metadata.user")
    with pytest.raises(ConfigError, match=r"is of adapter 'a' \(metadata.user\), and there are b"):
        assembly.read_tasks(by_user.config)


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
def test_a_run_that_stops_and_is_resumed_ends_with_the_same_bits(
    made, monkeypatch, tmp_path, estimator
):
    parts = made("Debate", "[pro, con]", "agent_name")
    monkeypatch.chdir(tmp_path)

    def trained(name, steps):
        given = [
            f"ajet.experiment_dir={tmp_path / name}",
            f"{STEPS}={steps}",
            f"ajet.trainer_common.algorithm.adv_estimator={estimator}",
            "ajet.trainer_common.save_freq=1",
        ]
        config = load_config(parts.config.yaml_path, given, backbone="debug")
        fit_debug(config, Console(file=io.StringIO()))
        checkpoint = tmp_path / name / "checkpoints" / f"step_{steps:06d}"
        return [(checkpoint / f"{n}.safetensors").read_bytes() for n in ("model", "tensors")]

    trained("stopped", 1)
    assert trained("stopped", 2) == trained("whole", 2)
    lines = (tmp_path / "whole" / "logs" / "metrics.jsonl").read_text().splitlines()
    of = [line for line in map(json.loads, lines) if "update/loss/pro" in line]
    assert [line["update/optimizer_steps/con"] for line in of] == [1.0, 1.0]
    tensors = load_file(tmp_path / "whole/checkpoints/step_000002/tensors.safetensors")
    critics = {name.split(".")[1] for name in tensors if name.startswith("critic.")}
    assert critics == ({"pro", "con"} if estimator == "gae" else set())
    if estimator == "grpo":
        check_scores(RecordedRun(tmp_path / "whole"))


def check_scores(run):
    """Asserts that each call has, under the checkpoint that it was sampled with, the
    log-probabilities that its adapter's engine recorded."""
    with run.reader() as reader:
        episode = reader.episode("000002-train-0000-01")
    first = run.folder.path / "checkpoints/step_000001"
    before, after = score_episode(run, episode, [first])
    assert (before.step, after.step) == (0, 1)
    assert {turn.agent_name for turn in episode.turns} == {"pro", "con"}
    for turn, at_first, sampled in zip(episode.turns, before.turns, after.turns, strict=True):
        np.testing.assert_allclose(sampled, turn.logprobs, atol=1e-4)
        assert np.abs(np.array(at_first) - turn.logprobs).max() > 1e-3
