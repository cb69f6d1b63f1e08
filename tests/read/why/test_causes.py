"""What holds a reward back: each cause from evidence made by hand, and what is no cause."""

import json
from dataclasses import replace

import pytest

from ajet.core.config.load import load_config
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.warning_log import RunWarning
from ajet.core.task.task import Task
from ajet.read.why.causes import CAUSES, Cause, causes
from ajet.read.why.evidence import (
    Call,
    Evidence,
    Seen,
    announced,
    contains,
    foreign_marker,
    reference_of,
)
from ajet.read.why.report import reward_trend

GOOD = {
    "episodes/total": 64.0,
    "groups/total": 8.0,
    "groups/with_signal": 6.0,
    "tokens/sampled": 1000.0,
    "tokens/trained": 1000.0,
    "advantage/abs_mean": 0.5,
    "update/lr": 1e-6,
    "update/sampler_kl": 1e-7,
    "update/clip_fraction_low": 0.01,
    "update/clip_fraction_high": 0.01,
    "reward/mean": 0.5,
}
NUM_STEPS = 8


def episode(number: int, **changes) -> Seen:
    """The episode `number`: groups of four, one of whose members gives the reference answer."""
    right = number % 4 == 0
    seen = Seen(
        episode_id=f"e{number}",
        step=number // 16 + 1,
        group_id=f"g{number // 4}",
        task_id=f"t{number // 4}",
        reward=float(right),
        reference="42",
        announced="",
        replies=bytes([number % 256, number // 256]),
        has_reference=right,
        max_version=number // 16,
        calls=(Call("stop", True),),
    )
    return replace(seen, **changes)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    file = tmp_path_factory.mktemp("why") / "x.yaml"
    file.write_text("ajet: {model: {path: embedded:math}}\n")
    return load_config(file)


def evidence(config, *, metrics=(), episodes=None, **changes) -> Evidence:
    """A healthy run of eight steps, with these changes."""
    steps = [(step, {**GOOD, **dict(metrics)}) for step in range(1, NUM_STEPS + 1)]
    seen = [episode(i) for i in range(128)] if episodes is None else episodes
    found = Evidence(config, steps, [], {}, seen, num_tasks=32, num_trained=128)
    return replace(found, **changes)


def with_values(config, **values):
    """The config with these values, by their path below `ajet`."""
    changed = config.model_copy(deep=True)
    for path, value in values.items():
        *sections, key = path.split("__")
        section = changed.ajet
        for name in sections:
            section = getattr(section, name)
        object.__setattr__(section, key, value)
    return changed


def first(found: Evidence) -> Cause:
    return causes(found)[0]


def test_a_healthy_run_has_no_cause(config):
    assert causes(evidence(config)) == []


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"trainer_common__optim__lr": 0.0}, "learning_rate"),
        ({"trainer_common__optim__betas": [0.999, 0.9]}, "betas"),
        ({"rollout__num_repeat": 1}, "group_of_one"),
        ({"trainer_common__use_kl_loss": True, "trainer_common__kl_loss_coef": 50.0}, "strong_kl"),
    ],
)
def test_a_setting_that_holds_the_reward_back_is_named(config, values, name):
    assert [each.name for each in causes(evidence(with_values(config, **values)))] == [name]


@pytest.mark.parametrize("betas", [[0.9, 0.999], [0.9, 0.95], [0.0, 0.99], [0.9, 0.9]])
def test_usual_betas_are_no_cause(config, betas):
    assert causes(evidence(with_values(config, trainer_common__optim__betas=betas))) == []


@pytest.mark.parametrize(
    ("metrics", "name", "part"),
    [
        ({"update/lr": 1e-9}, "learning_rate", "in 8 of 8 steps the learning rate was"),
        ({"tokens/trained": 50.0, "tokens/untrained_other_agent": 950.0}, "untrained_tokens",
         "400 of 8,000 sampled tokens were trained, 7,600 of them because of: other agent"),
        ({"update/clip_fraction_low": 0.3}, "clipped", "31% of the trained tokens were clipped"),
        ({"episodes/cut": 32.0, "episodes/cut_max_model_len": 32.0}, "truncated",
         "256 of 512 episodes were cut, most by max_model_len"),
        ({"episodes/agent_error": 32.0}, "failures", "256 of 512 episodes failed"),
        ({"groups/with_signal": 0.0}, "no_signal", "0 of 64 groups have different rewards"),
    ],
)  # fmt: skip
def test_metrics_that_hold_the_reward_back_are_named_with_their_numbers(
    config, metrics, name, part
):
    found = first(evidence(config, metrics=metrics))
    assert found.name == name and part in found.found


def test_failures_name_an_error_and_its_episode(config):
    failed = evidence(
        config,
        metrics={"episodes/agent_error": 32.0},
        failures={"agent_error": ("e7", "ValueError: no answer")},
    )
    assert first(failed).found.endswith("most with agent_error: ValueError: no answer")
    assert first(failed).episode_id == "e7"


def test_an_agent_that_is_left_out_on_purpose_is_no_cause(config):
    some = {"tokens/trained": 400.0, "tokens/untrained_other_agent": 600.0}
    assert causes(evidence(config, metrics=some)) == []


def test_a_judge_that_pays_for_wrong_answers_is_inverted(config):
    seen = [episode(i, reward=float(i % 4 != 0)) for i in range(128)]
    found = first(evidence(config, episodes=seen))
    assert found.name == "inverted_judge"
    assert "earn 0 on average (32 episodes), the others 1 (96)" in found.found
    assert found.episode_id == "e0"


def test_equal_replies_with_different_rewards_are_rewards_of_others(config):
    seen = [episode(i, replies=b"same", reward=float(i % 2)) for i in range(128)]
    found = first(evidence(config, episodes=seen))
    assert found.name == "reward_of_another" and "of 96 pairs" in found.found


def test_equal_replies_with_equal_rewards_are_no_cause(config):
    replies = [episode(i, replies=bytes([i % 4])) for i in range(128)]
    assert causes(evidence(config, episodes=replies)) == []


@pytest.mark.parametrize(
    ("prompt", "leaks"),
    [
        ("The answer is 42.\nHow many?", True),
        ("How many? Answer: 42", True),
        ("How many?\n#### 42", True),
        ("Is 42 more than 41?", False),
        ("Passage: there were 42 of them.\nHow many? Answer briefly.", False),
    ],
)
def test_an_answer_leaks_where_the_prompt_announces_it(config, prompt, leaks):
    seen = [episode(i, announced=announced(prompt)) for i in range(128)]
    names = [each.name for each in causes(evidence(config, episodes=seen))]
    assert names == (["leaked_answer"] if leaks else [])


def test_answers_that_every_prompt_offers_do_not_leak(config):
    offers = announced("How many? Answer yes or no.")
    seen = [
        episode(i, announced=offers, reference="yes" if i // 4 % 2 else "no") for i in range(128)
    ]
    assert causes(evidence(config, episodes=seen)) == []


def test_a_masked_end_of_replies_is_found_and_cut_replies_do_not_count(config):
    masked = [episode(i, calls=(Call("stop", False),)) for i in range(128)]
    assert first(evidence(config, episodes=masked)).name == "end_token"
    cut = [episode(i, calls=(Call("length", False),)) for i in range(128)]
    assert causes(evidence(config, episodes=cut)) == []


def test_a_sampler_that_drifts_away_has_old_weights_and_one_that_is_off_from_the_start_has_not(
    config,
):
    steps = [(s, {**GOOD, "update/sampler_kl": 0.02 * (s - 1)}) for s in range(1, 9)]
    assert first(evidence(config, steps=steps)).name == "stale_weights"
    off = evidence(config, metrics={"update/sampler_kl": 0.02})
    assert causes(off) == []


def test_groups_of_equal_replies_at_a_low_temperature_name_the_temperature(config):
    seen = [episode(i, replies=bytes([i // 4]), reward=0.0) for i in range(128)]
    cold = with_values(config, rollout__temperature=0.01)
    found = evidence(cold, episodes=seen, metrics={"groups/with_signal": 0.0})
    assert [each.name for each in causes(found)] == ["temperature", "no_signal"]


def test_what_hides_other_causes_comes_before_them(config):
    """With another family's parser no call works, so all rewards are 0."""
    seen = [episode(i, reward=0.0, has_reference=False) for i in range(128)]
    warning = RunWarning(1, "call_form", "step 1: 60 of 64 replies …")
    found = evidence(
        config,
        episodes=seen,
        metrics={"groups/with_signal": 0.0},
        warnings={"call_form": warning},
    )
    assert [each.name for each in causes(found)] == ["tool_parser", "no_signal"]


@pytest.mark.parametrize(
    ("r", "names"), [(0.8, ["length_exploit", "truncated"]), (-0.8, ["truncated"])]
)
def test_replies_that_grow_because_length_pays_are_cut_because_of_it(config, r, names):
    warning = RunWarning(1, "length_correlation", "the reward follows …", {"r": r})
    cut = {"episodes/cut": 32.0, "episodes/cut_max_model_len": 32.0}
    found = evidence(config, metrics=cut, warnings={"length_correlation": warning})
    assert [each.name for each in causes(found)] == names


def test_few_tasks_and_questions_that_are_held_out_and_trained_are_named(config):
    few = evidence(config, num_tasks=4, num_trained=4 * 4 * 40)
    assert "4 different training tasks, each was trained 40 times" in first(few).found
    leaked = evidence(config, held_out_trained=(5, 20))
    assert "5 of 20 held-out questions are trained on" in first(leaked).found


def test_held_out_tasks_from_the_training_split_are_named(config):
    of_hub = config.ajet.task_reader.huggingface_dat_repo.model_copy(deep=True)
    object.__setattr__(of_hub, "validation_split", of_hub.training_split)
    found = first(evidence(with_values(config, task_reader__huggingface_dat_repo=of_hub)))
    assert found.name == "held_out_leak" and "read from the split train" in found.found


def test_small_rewards_are_a_cause_only_if_they_differ(config):
    small = [episode(i, reward=0.01 * (i % 4 == 0)) for i in range(128)]
    assert first(evidence(config, episodes=small)).name == "reward_scale"


def test_no_check_speaks_about_an_empty_run(config):
    nothing = Evidence(config, [], [], {}, [])
    assert [check.__name__ for check in CAUSES if check(nothing)] == []


@pytest.mark.parametrize(
    ("template", "marker"),
    [
        ("<|im_start|>{{ m }}<|im_end|>", None),
        ("<|start_header_id|>{{ m }}<|eot_id|><|im_end|>", "<|start_header_id|>"),
        ("[INST]{{ m }}[/INST]", "[INST]"),
        ("{{ m }}", None),
    ],
)
def test_a_template_whose_marks_are_no_tokens_is_that_of_another_family(
    config, tmp_path, template, marker
):
    folder = RunFolder(tmp_path)
    folder.tokenizer.mkdir()
    added = [{"content": "<|im_start|>"}, {"content": "<|im_end|>"}]
    (folder.tokenizer / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    (folder.tokenizer / "chat_template.jinja").write_text(template)
    assert foreign_marker(folder) == marker
    names = [each.name for each in causes(evidence(config, marker=marker))]
    assert names == (["template"] if marker else [])


@pytest.mark.parametrize(
    ("metadata", "reference"),
    [
        ({"answer": "It takes <<2+2=4>>4.\n#### 4"}, "4"),
        ({"ground_truth": 7}, "7"),
        ({"reward_model": {"ground_truth": "Paris"}}, "Paris"),
        ({"answer": "First add two, then take away 1. So 12."}, "12"),
        ({"answer": ["a", "b"]}, ""),
        ({"question": "x"}, ""),
    ],
)
def test_the_reference_answer_is_the_short_one(metadata, reference):
    assert reference_of(Task(task_id="t", main_query="q", metadata=metadata)) == reference


@pytest.mark.parametrize(
    ("text", "is_in"),
    [("so 42.", True), (r"\boxed{42}", True), ("142", False), ("42.5", False), ("4 2", False)],
)
def test_a_reference_counts_as_a_word_of_its_own(text, is_in):
    assert contains(text, "42") is is_in


@pytest.mark.parametrize(
    ("rewards", "trend"),
    [
        ([0.1, 0.12, 0.11, 0.5, 0.5, 0.88, 0.9, 0.89], "rises"),
        ([0.5, 0.4, 0.6, 0.5, 0.4, 0.6, 0.5, 0.45], "flat"),
        ([0.9, 0.88, 0.9, 0.5, 0.4, 0.1, 0.12, 0.1], "falls"),
        ([0.1, 0.9], "too short"),
    ],
)
def test_a_trend_is_beyond_its_interval(config, rewards, trend):
    steps = [(step, {**GOOD, "reward/mean": value}) for step, value in enumerate(rewards, 1)]
    assert reward_trend(evidence(config, steps=steps))[0] == trend
