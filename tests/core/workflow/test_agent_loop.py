"""verl's agent loops, in files as verl's users have them."""

import json
import sys

import pytest
from loguru import logger
from omegaconf.errors import ReadonlyConfigError

from ajet import BaseJudge, Task
from ajet.assembly import user_files
from ajet.cli.preflight import check_agents, check_classes
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.rollout.request import RolloutRequest
from ajet.core.run.code_files import code_files
from ajet.core.workflow import registry
from ajet.core.workflow.registry import WorkflowFactory
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
ROW = {
    "data_source": "made up",
    "agent_name": "two_tries",
    "prompt": [{"role": "user", "content": "2+3?"}],
    "reward_model": {"style": "rule", "ground_truth": "5"},
    "extra_info": {"index": 7, "tools_kwargs": {"check": {"create_kwargs": {"truth": "5"}}}},
}
HEAD = """
import logging
import os
from typing import Any
from uuid import uuid4

from ajet.compat.verl import (
    AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register, rollout_trace_op, simple_timer
)

logger = logging.getLogger(__file__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "WARN"))
SEEN = {}
"""
TWO_TRIES = """
@register("two_tries")
class TwoTries(AgentLoopBase):
    '''Asks, tells the model to look again, and asks once more.'''

    made = calls = 0

    @classmethod
    def init_class(cls, config, tokenizer, processor=None, **kwargs):
        cls.calls += 1
        if cls._class_initialized:
            return
        cls._class_initialized = True
        cls.made += 1
        cls.again = tokenizer.encode("Look again.", add_special_tokens=False)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.prompt_length = self.config.actor_rollout_ref.rollout.prompt_length
        self.response_length = self.config.actor_rollout_ref.rollout.response_length
        self.format = self.rollout_config.multi_turn.format
        self.own = self.config.my_section.size

    @rollout_trace_op
    async def run(self, sampling_params: dict[str, Any], **kwargs) -> AgentLoopOutput:
        SEEN.update(kwargs, sampling_params=sampling_params, size=self.own)
        messages = list(kwargs["raw_prompt"])
        images = (await self.process_vision_info(messages)).get("images")
        metrics = {}
        prompt_ids = await self.loop.run_in_executor(
            None,
            lambda: self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True
            ),
        )
        prompt_ids = prompt_ids[-self.prompt_length :]
        response_ids, mask, logprobs = [], [], []
        for turn in range(2):
            with simple_timer("generate_sequences", metrics):
                output = await self.server_manager.generate(
                    request_id=uuid4().hex,
                    prompt_ids=prompt_ids + response_ids,
                    sampling_params=sampling_params,
                    image_data=images,
                )
            response_ids += output.token_ids
            mask += [1] * len(output.token_ids)
            logprobs += output.log_probs
            if turn == 0:
                response_ids += self.again
                mask += [0] * len(self.again)
                logprobs += [0.0] * len(self.again)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=response_ids[: self.response_length],
            response_mask=mask[: self.response_length],
            response_logprobs=logprobs[: self.response_length],
            num_turns=4,
            metrics=AgentLoopMetrics(**metrics),
            extra_fields={"tries": 2},
        )
"""
ONCE = """
@register("once")
class Once(AgentLoopBase):
    async def run(self, sampling_params, **kwargs):
        prompt_ids = await self.apply_chat_template(list(kwargs["raw_prompt"]))
        sampling_params = {**sampling_params, **SAMPLING}
        response_ids = await self.server_manager.generate(
            request_id=uuid4().hex, prompt_ids=prompt_ids, sampling_params=sampling_params
        )
        return AgentLoopOutput(
            prompt_ids=prompt_ids, response_ids=response_ids, response_mask=[1] * len(response_ids),
            metrics={}, RESULT
        )
"""


class One(BaseJudge):
    def compute_reward(self, workflow_task, workflow_output):
        return 1.0, True


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    monkeypatch.setattr(registry, "_WORKFLOWS", {})


@pytest.fixture
def config(tmp_path):
    def make(text, listing=None, **rollout):
        (tmp_path / "loops.py").write_text(HEAD + text)
        if listing is None:
            rollout = {"agent_modules": ["loops.py"], **rollout}
        else:
            (tmp_path / "agent.yaml").write_text(json.dumps(listing))
            rollout["agent"] = {"agent_loop_config_path": "agent.yaml"}
        ajet = {"model": {"path": "org/model"}, "rollout": rollout}
        written = {"ajet": ajet, "my_section": {"size": 3}}
        (tmp_path / "run.yaml").write_text(json.dumps(written))
        return load_config(tmp_path / "run.yaml")

    return make


async def run(config, *replies, row=ROW, num=1, **limits):
    """The trajectory of one episode (of `num`) of the row's agent, on a model with these
    replies."""
    task = Task("t", "2+3?", metadata=dict(row))
    workflow = WorkflowFactory.from_config(config).class_for(task)
    endpoint = ScriptedEndpoint(TOKENIZER, lambda _, name: replies[int(name[-4:])])
    judge = One()
    runner = episode_runner(
        workflow, endpoint, TOKENIZER, judge, debug=True, config=config, **limits
    )
    [group] = await runner.rollout(RolloutRequest([task], step=0, mode="eval", num_repeat=num))
    return group.trajectories[0] if num == 1 else group.trajectories


def module_of(config):
    from ajet.core.user_code.importing import load_module

    return load_module("loops.py", base_dirs=config.base_dirs, location="test")


async def test_a_loop_of_verl_needs_another_import_line_alone(config):
    made = config(TWO_TRIES)
    check_agents(made, WorkflowFactory.from_config(made), [Task("t", "q", metadata=ROW)])
    t = await run(made, "It is 6.", "It is 5.")
    assert (t.status, t.reward) == ("ok", 1.0)
    assert t.output.metadata == {"final_answer": "It is 5.", "num_turns": 4, "tries": 2}
    first, second = (turn.completion for turn in t.turns)
    again = TOKENIZER.encode("Look again.", add_special_tokens=False)
    assert list(second.prompt_ids) == [*first.prompt_ids, *first.token_ids, *again]
    assert first.prompt_ids == tuple(
        TOKENIZER.apply_chat_template(ROW["prompt"], add_generation_prompt=True, return_dict=False)
    )
    assert not t.turns[0].notes.sampling_not_taken  # the run's own settings ask nothing
    assert t.output.log_metrics["sampled_tokens_left_out"] == 0
    seen = module_of(made).SEEN
    assert (seen["index"], seen["size"], seen["reward_model"]) == (7, 3, ROW["reward_model"])
    assert seen["tools_kwargs"] == ROW["extra_info"]["tools_kwargs"]
    assert sorted(seen["sampling_params"]) == [
        "logprobs", "repetition_penalty", "temperature", "top_k", "top_p"
    ]  # fmt: skip


async def test_init_class_is_called_once_for_each_class_however_many_episodes_there_are(config):
    derived = TWO_TRIES + (
        "\n\n@register('other')\nclass Other(TwoTries):\n    made = calls = 10\n"
        "\n    def __init__(self, trainer_config, **kwargs):"
        "\n        super().__init__(trainer_config, **kwargs)\n"
    )
    made = config(derived)
    await run(made, "one", "two", num=3)
    await run(made, "one", "two", row=ROW | {"agent_name": "other"}, num=2)
    module = module_of(made)
    assert (module.TwoTries.made, module.Other.made) == (1, 11)
    assert (module.TwoTries.calls, module.Other.calls) == (1, 11)


KEEPS = """
@register("keeps")
class Keeps(AgentLoopBase):
    def __init__(self, *args, tools=None, **kwargs):
        super().__init__(*args, **kwargs)
        SEEN.setdefault("configs", []).append(self.config)
        SEEN["tools"] = tools.tools

    async def run(self, sampling_params, **kwargs):
        prompt_ids = await self.apply_chat_template(list(kwargs["raw_prompt"]))
        output = await self.server_manager.generate(
            request_id="x", prompt_ids=prompt_ids, sampling_params=sampling_params
        )
        return AgentLoopOutput(
            prompt_ids=prompt_ids, response_ids=output, response_mask=[1] * len(output), metrics={}
        )


@register("derived")
class Derived(Keeps):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
"""


async def test_the_episodes_of_a_run_share_one_config_that_none_can_change(config):
    made = config(KEEPS)
    await run(made, "five", row=ROW | {"agent_name": "keeps"}, num=3)
    first, second, third = module_of(made).SEEN["configs"]
    assert first is second is third
    with pytest.raises(ReadonlyConfigError):
        first.actor_rollout_ref.rollout.n = 9
    other = config(KEEPS, temperature=0.25)
    await run(other, "five", row=ROW | {"agent_name": "keeps"})
    assert module_of(other).SEEN["configs"][-1].actor_rollout_ref.rollout.temperature == 0.25


@pytest.mark.parametrize("name", ["keeps", "derived"])
async def test_a_loop_that_takes_verls_tools_gets_none_and_is_refused_where_there_are_some(
    config, name
):
    row = ROW | {"agent_name": name}
    made = config(KEEPS)
    check_agents(made, WorkflowFactory.from_config(made), [Task("t", "q", metadata=row)])
    await run(made, "five", row=ROW | {"agent_name": "keeps"})
    assert module_of(made).SEEN["tools"] == []
    with_tools = config(KEEPS, multi_turn={"tool_config_path": "tools.yaml"})
    with pytest.raises(ConfigError) as error:
        check_agents(
            with_tools, WorkflowFactory.from_config(with_tools), [Task("t", "q", metadata=row)]
        )
    assert "takes verl's tools, which ajet gives only to tool_agent" in str(error.value)
    assert "name tool_agent in the rows, or make the tools in init_class" in str(error.value)
    assert "\n" not in str(error.value)


OLD = """
class OldBase:  # as of the first version of verl with agent loops
    def __init__(self, config, server_manager, tokenizer):
        self.config, self.server_manager, self.tokenizer = config, server_manager, tokenizer


class Old(OldBase):
    async def run(self, messages, sampling_params):
        prompt_ids = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        response_ids = await self.server_manager.generate("x", prompt_ids=prompt_ids,
                                                          sampling_params=sampling_params)
        length = self.config.actor_rollout_ref.rollout.response_length
        SEEN["kinds"] = [type(prompt_ids), len(response_ids[:length])]
        return AgentLoopOutput(
            prompt_ids=prompt_ids, response_ids=response_ids[:length],
            response_mask=[1] * len(response_ids[:length]), reward_score=0.25, metrics={},
        )
"""


async def test_a_loop_that_derives_from_nothing_of_ours_works_by_its_arguments(config):
    made = config(OLD, [{"name": "old", "_target_": "loops.py->Old"}])
    check_agents(
        made, WorkflowFactory.from_config(made), [Task("t", "q", metadata={"agent_name": "old"})]
    )
    t = await run(made, "five", row=ROW | {"agent_name": "old"})
    assert (t.reward, t.output.metadata["final_answer"]) == (0.25, "five")
    assert module_of(made).SEEN["kinds"] == [list, len(t.turns[0].completion.token_ids)]


SETTINGS = """
class Patient(AgentLoopBase):
    def __init__(self, trainer_config, server_manager, tokenizer, processor, patience, **kwargs):
        super().__init__(trainer_config, server_manager, tokenizer, processor, **kwargs)
        SEEN["patience"] = patience

    async def run(self, sampling_params, **kwargs):
        prompt_ids = await self.apply_chat_template(list(kwargs["raw_prompt"]))
        output = await self.server_manager.generate(
            request_id="x", prompt_ids=prompt_ids, sampling_params=sampling_params
        )
        return AgentLoopOutput(
            prompt_ids=prompt_ids, response_ids=output, response_mask=[1] * len(output), metrics={}
        )
"""


async def test_the_file_of_agent_loop_config_path_names_loops_and_their_settings(config, tmp_path):
    (tmp_path / "patient_loop.py").write_text(HEAD + SETTINGS)
    listing = [{"name": "patient", "_target_": "patient_loop.Patient", "patience": 4}]
    made = config("", listing)
    check_agents(
        made,
        WorkflowFactory.from_config(made),
        [Task("t", "q", metadata={"agent_name": "patient"})],
    )
    await run(made, "five", row=ROW | {"agent_name": "patient"})
    assert sys.modules["patient_loop"].SEEN == {"patience": 4}
    assert [file.name for file in user_files(made, WorkflowFactory.from_config(made))] == [
        "patient_loop.py"
    ]
    assert "patient_loop.py" in [file.name for file in code_files(made)]
    again = config("", listing, user_workflow="patient")
    assert WorkflowFactory.from_config(again).default.__name__ == "Patient"


def entry(name, kind, **settings):
    return {"name": name, "_target_": f"loops.py->{kind}", **settings}


MISTAKES = [
    ([entry("a", "Nobody")], r"agent.yaml: \[0\]._target_: .* has no class 'Nobody'"),
    ([{"name": "a"}], r"agent.yaml: \[0\]: write an agent loop as name: … and _target_"),
    ([entry("a", "Patient", _partial_=True)], r"agent.yaml: \[0\]: no key '_partial_' here"),
    ([entry("tool_agent", "Patient")], "'tool_agent' is the name of an installed agent"),
    ([entry("a", "AgentLoopMetrics")], "AgentLoopMetrics is not an agent loop: derive it from"),
    ({"name": "a"}, "a list of agent loops is expected"),
]


@pytest.mark.parametrize(("listing", "message"), MISTAKES)
def test_a_mistake_in_that_file_is_one_line_before_a_launch(config, listing, message):
    with pytest.raises(ConfigError, match=message) as error:
        check_classes(config(SETTINGS, listing))
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_one_line(config, tmp_path):
    made = config(SETTINGS, [])
    (tmp_path / "agent.yaml").unlink()
    with pytest.raises(ConfigError, match=r"agent_loop_config_path: agent.yaml: no such file"):
        check_classes(made)


CLASSES = [
    ("def run(self, sampling_params, **kwargs): pass", {}, "Wrong.run is not async: write async"),
    ("x = 1", {}, "Wrong does not define async run(self, sampling_params, **kwargs)"),
    (
        "def __init__(self, trainer_config, secret): pass\n"
        "    async def run(self, sampling_params, **kwargs): pass",
        {},
        "give secret of its __init__ a default, or a value in the file of agent_loop_config_path",
    ),
    (
        "def __init__(self, trainer_config): pass\n"
        "    async def run(self, sampling_params, **kwargs): pass",
        {"patience": 1},
        "Wrong takes no patience, which agent_loop_config_path gives it",
    ),
]


@pytest.mark.parametrize(("body", "settings", "message"), CLASSES)
def test_a_mistake_in_a_loop_is_one_line_before_a_launch(config, body, settings, message):
    text = f"class Wrong(AgentLoopBase):\n    {body}\n"
    made = config(text, [{"name": "wrong", "_target_": "loops.py->Wrong", **settings}])
    with pytest.raises(ConfigError) as error:
        check_agents(
            made,
            WorkflowFactory.from_config(made),
            [Task("t", "q", metadata={"agent_name": "wrong"})],
        )
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def once(sampling="", result=""):
    return ONCE.replace("**SAMPLING", sampling).replace("RESULT", result)


async def fails(config, text):
    with pytest.raises((TypeError, ValueError, AttributeError)) as error:
        await run(config(text), "five", row=ROW | {"agent_name": "once"})
    return str(error.value)


async def test_a_mask_on_a_token_that_was_not_sampled_is_an_error(config):
    text = once().replace("prompt_ids=prompt_ids, response_ids=response_ids, response_mask=[1]", (
        "prompt_ids=prompt_ids, response_ids=[5, *response_ids], response_mask=[1, 1]"
    )).replace("[1, 1] * len(response_ids)", "[1] * (len(response_ids) + 1)")  # fmt: skip
    assert "response_mask 1 at position 0, where the model sampled no such token" in await fails(
        config, text
    )


async def test_a_mask_of_another_length_is_an_error(config):
    text = once().replace("[1] * len(response_ids)", "[1]")
    assert "values of response_mask: give one for each" in await fails(config, text)


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        ("'repetition_penalty': 1.1", "tokens are not sampled with repetition_penalty=1.1"),
        ("'guided_json': {}", "tokens are not sampled with guided_json={}"),
    ],
)
async def test_a_sampling_setting_that_ajet_has_not_is_an_error(config, sampling, says):
    assert says in await fails(config, once(sampling))


async def test_images_are_an_error(config):
    text = once().replace(
        "prompt_ids=prompt_ids, sampling", "image_data=[1], prompt_ids=prompt_ids, sampling"
    )
    assert "server_manager.generate takes no image_data: only text" in await fails(config, text)


async def test_a_key_that_the_config_has_not_names_itself(config):
    text = once().replace(
        "prompt_ids = await", "self.config.actor_rollout_ref.rollout.sped; prompt_ids = await"
    )
    assert "actor_rollout_ref.rollout.sped" in await fails(config, text)


async def test_sampled_tokens_that_an_output_leaves_out_are_counted_and_said_once(config):
    text = once().replace(
        "response_ids=response_ids, response_mask=[1] * len(response_ids)",
        "response_ids=response_ids[:2], response_mask=[1, 0]",
    )
    said = []
    sink = logger.add(said.append, level="WARNING", format="{message}")
    made = config(text)
    t = await run(made, "five", row=ROW | {"agent_name": "once"})
    await run(made, "five", row=ROW | {"agent_name": "once"})
    logger.remove(sink)
    num_sampled = len(t.turns[0].completion.token_ids)
    assert t.output.log_metrics["sampled_tokens_left_out"] == num_sampled - 1
    assert [str(each) for each in said if "Once.run() left" in each] == [
        f"Once.run() left {num_sampled - 1} sampled tokens out of its response or masked them; "
        "they are trained anyway (metric sampled_tokens_left_out)\n"
    ]


async def test_a_call_may_have_a_limit_of_its_own(config):
    t = await run(config(once("'max_new_tokens': 2")), "five", row=ROW | {"agent_name": "once"})
    assert t.turns[0].notes.sampling == {"max_tokens": 2}


async def test_later_messages_are_rendered_without_what_the_template_begins_with(config):
    text = once().replace("prompt_ids = await", (
        "SEEN['ids'] = await self.apply_chat_template("
        "[{'role': 'user', 'content': 'And?'}], remove_system_prompt=True); prompt_ids = await"
    ))  # fmt: skip
    made = config(text)
    await run(made, "five", row=ROW | {"agent_name": "once"})
    assert TOKENIZER.decode(module_of(made).SEEN["ids"]) == (
        "<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_an_import_line_that_was_not_changed_says_where_the_names_are(config, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        monkeypatch.delitem(sys.modules, name)  # another test compares with verl
    made = config("from verl.experimental.agent_loop.agent_loop import AgentLoopBase")
    with pytest.raises(ConfigError) as error:
        check_classes(made)
    assert str(error.value).endswith(
        "it imports 'verl', which is not installed: import its names from ajet.compat.verl"
    )
