"""The two agents that play environments, in a corridor of two steps."""

import pytest

from ajet.agents.environment_settings import ActionReader
from ajet.core.errors import ConfigError
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.core.workflow.registry import registered_workflow
from tests.corridor import TOKENIZER, answers, corridor_config, play, says
from tests.fakes import ScriptedEndpoint

PENALTY = {"train_env_manager": {"format_penalty": -0.5}}


def prompt(turn):
    return TOKENIZER.decode(turn.completion.prompt_ids)


def contents(turn, role="user"):
    return [m["content"] for m in turn.messages if m["role"] == role]


async def test_the_episode_earns_the_sum_of_its_steps_and_each_reply_its_own(tmp_path):
    [episode] = await play(corridor_config(tmp_path), answers("Right", "Left", "Right", "Right"))
    assert episode.status is EpisodeStatus.OK
    assert [turn.reward for turn in episode.turns] == [-0.1, -0.1, -0.1, 1.0]
    assert episode.reward == pytest.approx(0.7)
    assert episode.is_success is True
    metadata = episode.output.metadata
    assert (metadata["ended_by"], metadata["tag"]) == ("terminated", "Walk")
    assert metadata["trace"][0] == {"action": "Right", "reward": -0.1}
    assert metadata["final_answer"] == "<answer>Right</answer>"


async def test_a_turn_is_credited_in_the_state_it_was_made_in(tmp_path):
    [episode] = await play(corridor_config(tmp_path), answers("Right", "Left", "Right", "Right"))
    assert [turn.state_key for turn in episode.turns] == ["0", "1", "0", "1"]


async def test_the_environments_metrics_are_the_tags(tmp_path):
    [episode] = await play(corridor_config(tmp_path), answers("Up", "Right", "Right"))
    assert episode.output.log_metrics == {
        "Walk/success": 1.0,
        "Walk/action_is_valid": pytest.approx(2 / 3),
        "Walk/moved": 3.0,
        "Walk/reward": pytest.approx(0.8),
        "Walk/num_steps": 3.0,
        "Walk/invalid_actions": 1.0,
    }


async def test_an_environment_that_never_ends_is_ended_by_max_steps(tmp_path):
    [episode] = await play(corridor_config(tmp_path), answers("Left"))
    assert (episode.status, len(episode.turns)) == (EpisodeStatus.OK, 4)
    assert episode.output.metadata["ended_by"] == "max_steps"
    assert episode.is_success is False


async def test_a_reply_without_an_action_costs_the_penalty_and_a_step_and_is_answered(tmp_path):
    config = corridor_config(tmp_path, environment=PENALTY)
    [episode] = await play(config, says("I go right.", "<answer>Right</answer>"))
    assert [turn.reward for turn in episode.turns] == [-0.5, -0.1, 1.0]
    assert [turn.state_key for turn in episode.turns] == ["0", "0", "1"]
    told = contents(episode.turns[1])[-1]
    assert told.startswith(
        "Your reply names no action: write it as <answer>…</answer>.\nYou are at 0 of 2."
    )
    assert "names no action" not in contents(episode.turns[2])[-1]
    assert episode.output.metadata["trace"][0] == {"action": None, "reward": -0.5}


async def test_replies_without_an_action_are_told_once_and_end_at_max_steps(tmp_path):
    [episode] = await play(corridor_config(tmp_path), says("hm"))
    assert contents(episode.turns[3])[-1].count("names no action") == 1
    assert len(episode.turns) == 4
    assert episode.output.log_metrics["Walk/invalid_actions"] == 4.0


async def test_the_environments_invalid_action_gets_the_penalty_too(tmp_path):
    config = corridor_config(tmp_path, environment=PENALTY)
    [episode] = await play(config, answers("Up", "Right", "Right"))
    assert [turn.reward for turn in episode.turns] == [-0.6, -0.1, 1.0]


async def test_the_penalty_is_that_of_the_modes_manager(tmp_path):
    config = corridor_config(tmp_path, environment=PENALTY)
    [episode] = await play(config, says("hm"), mode="eval")
    assert episode.reward == 0.0


async def test_a_greedy_baseline_is_played_under_the_terms_of_training(tmp_path):
    replies = ("<answer>Up</answer>", "<answer>Right</answer>")
    config = corridor_config(tmp_path, environment=PENALTY)
    [trained] = await play(config, says(*replies))
    [greedy] = await play(config, says(*replies), mode="baseline")
    assert (greedy.status, greedy.error) == (EpisodeStatus.OK, None)
    assert [turn.reward for turn in greedy.turns] == [turn.reward for turn in trained.turns]


async def test_an_environments_own_penalty_comes_before_its_managers(tmp_path):
    config = corridor_config(tmp_path, environment=PENALTY, format_penalty=0.0)
    [episode] = await play(config, says("hm"))
    assert episode.reward == 0.0


async def test_a_long_game_is_compacted_and_each_action_keeps_its_reward_and_state(tmp_path):
    compaction = {"enable": True, "prompt": "Sum up.", "max_summary_tokens": 30}
    rollout = {"max_model_len": 560, "max_response_length_in_one_turn": 50}
    data = {"max_prompt_length": 280, "max_response_length": 280, "train_batch_size": 2}
    ajet = {"rollout": rollout | {"compaction": compaction}, "data": data}
    config = corridor_config(tmp_path, ajet=ajet, max_tokens_per_step=50)

    def reply(prompt, _request_id):
        is_asked = "Sum up." in prompt.rpartition("user\n")[2]
        return "I was at 0." if is_asked else "<answer>Left</answer>"

    limits = {"max_model_len": 560, "max_response_length_in_one_turn": 50}
    [episode] = await play(config, ScriptedEndpoint(TOKENIZER, reply), **limits)
    assert (episode.status, episode.output.metadata["ended_by"]) == (EpisodeStatus.OK, "max_steps")
    assert [turn.notes.is_summary for turn in episode.turns] == [False, False, True, False, False]
    rewards = [turn.reward for turn in episode.turns]
    assert rewards == [-0.1, -0.1, None, -0.1, -0.1]
    assert [turn.state_key for turn in episode.turns] == ["0", "0", None, "0", "0"]
    roles = [message["role"] for message in episode.turns[3].messages]
    assert roles == ["system", "user", "assistant", "user"]


async def test_the_last_action_of_a_reply_counts_over_several_lines(tmp_path):
    reply = "<answer>Left</answer> no:\n<answer>\n Right\n</answer>"
    [episode] = await play(corridor_config(tmp_path, max_tokens_per_step=500), says(reply))
    assert [step["action"] for step in episode.output.metadata["trace"]] == ["Right", "Right"]


async def test_without_a_pattern_the_whole_reply_is_the_action(tmp_path):
    [episode] = await play(corridor_config(tmp_path, action_pattern=None), says(" Right\n"))
    assert episode.is_success
    assert "as the action alone." in contents(episode.turns[0])[0]


async def test_a_reply_has_at_most_max_tokens_per_step(tmp_path):
    endpoint = answers("Right")
    [episode] = await play(corridor_config(tmp_path, max_tokens_per_step=5), endpoint)
    assert {sampling.max_tokens for sampling in endpoint.sampling.values()} == {5}
    assert episode.output.log_metrics["Walk/invalid_actions"] == 4.0


async def test_traj_env_agent_keeps_the_whole_conversation_on_one_timeline(tmp_path):
    [episode] = await play(corridor_config(tmp_path), answers("Right"))
    first, second = episode.turns
    assert prompt(second).startswith(prompt(first) + "<answer>Right</answer>")
    assert contents(first, "system") == ["Walk to the right end. Say Left or Right."]
    assert [text.splitlines()[0] for text in contents(second)] == [
        "You are at 0 of 2.",
        "You are at 1 of 2.",
    ]


async def test_step_env_agent_shows_each_step_alone_with_a_window_on_earlier_ones(tmp_path):
    config = corridor_config(tmp_path, env_manager_cls="step_env_agent", history_length=1)
    [episode] = await play(config, answers("Right", "Left", "Right", "Right"))
    assert [len(turn.messages) for turn in episode.turns] == [2, 2, 2, 2]
    first, *_, last = (contents(turn)[0] for turn in episode.turns)
    assert first.startswith("Your last steps:\nnone\n\nStep 1 of 4. You see:\nYou are at 0 of 2.")
    assert "Step 3: You are at 0 of 2.\nYou did: Right\n\nStep 4 of 4." in last
    assert "Step 2:" not in last


async def test_templates_of_the_users_own_have_every_placeholder(tmp_path):
    template = (
        "{state}|{turn_idx:d}|{step_count}|{actions_left}|{max_steps}|{history_length}|"
        "{response_length}|{max_response_length}|{{}}"
    )
    config = corridor_config(tmp_path, agent_system_template="", agent_template=template)
    [episode] = await play(config, answers("Right"))
    assert [turn.messages[0]["role"] for turn in episode.turns] == ["user", "user"]
    assert contents(episode.turns[1])[-1] == "You are at 1 of 2.|2|1|3|4|1|128|128|{}"


async def test_a_prompt_beyond_the_limit_truncates_and_what_was_earned_stands(tmp_path):
    limits = {"max_prompt_length": 250, "max_response_length": 200}
    [episode] = await play(corridor_config(tmp_path), answers("Left"), **limits)
    assert episode.status is EpisodeStatus.TRUNCATED
    assert episode.output.metadata["ended_by"] == "token_limit"
    assert episode.reward == pytest.approx(-0.1 * len(episode.output.metadata["trace"]))
    assert 0 < len(episode.output.metadata["trace"]) < 4


@pytest.mark.parametrize(
    ("custom", "message"),
    [
        ({"agent_template": "{observation} {goal}"}, "no placeholder {goal}; there are {observ"),
        ({"agent_system_template": "{observation}"}, "no placeholder {observation}; there are"),
        ({"agent_template": "a { b"}, "write a literal brace twice"),
        ({"action_pattern": "<a>.*</a>"}, "has 0 groups: put the action"),
        ({"agent_template": "{observation:d}"}, "a placeholder's form is wrong: ValueError: Unkn"),
        ({"agent_template": "{observation!x}"}, "a placeholder's form is wrong: ValueError: Unkn"),
        ({"agent_template": "{state:{goal}}"}, "a placeholder's form is wrong: KeyError: 'goal'"),
        ({"action_pattern": "("}, "is not a regular expression"),
        ({"action_pattern": "a{99999999999999}(b)"}, "is not a regular expression: the repetition"),
        ({"env_type": "tests.corridor->Nowhere"}, "Nowhere"),
        ({"env_type": "nowhere"}, "no environment 'nowhere'"),
        ({"env_config": {"lenth": 3}}, "has no setting 'lenth'; did you mean 'length'"),
        ({"env_config": {"length": 3, "x": 1}}, "has no setting 'x'; there are length"),
        (
            {"env_type": "frozen_lake", "env_config": {"p": 0.01}},
            "Walk: frozen_lake: none of",
        ),
        (
            {"env_type": "webshop", "env_config": {"num_products": 1}},
            "Walk: webshop: 2 goals are too few to have one in split validation",
        ),
        ({"env_type": "webshop", "env_config": {"num_products": 0}}, "num_products is 0"),
        (
            {
                "env_type": "env_service",
                "env_config": {"env_url": "http://a", "env_type": "x"},
                "isolation": "inline",
            },
            "isolation is inline, but calls of a service block",
        ),
        ({"max_steps": 31}, r"multi_turn.max_steps \(30\)"),
        ({"max_tokens_per_step": 5000}, r"max_response_length_in_one_turn \(4096\)"),
    ],
)
def test_a_mistake_in_the_config_is_one_line_before_the_first_episode(tmp_path, custom, message):
    config = corridor_config(tmp_path, **custom)
    with pytest.raises(ConfigError, match=message) as caught:
        registered_workflow("traj_env_agent").check_config(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "reply", "action", "form"),
    [
        ("(.*)", "go\nleft", "go\nleft", "…"),  # which matches nothing once more, at the end
        ("(a)?", "b", None, "…?"),
        ("<a>(.*?)</a>|none", "<a>x</a> none", None, "<a>…</a>|none"),
        ("<a>(.*?)</a>", "<a>x</a> <a> </a>", None, "<a>…</a>"),
        (r"(?i)^action:\s*(?P<act>.*)$", "Action: up", "up", "action: …"),
        (r"\[(.*?)\]", "[up] [down]", "down", "[…]"),
    ],
)
def test_an_action_pattern_finds_the_action_and_describes_its_form(pattern, reply, action, form):
    reader = ActionReader(pattern, "here")
    assert (reader.find_action(reply), reader.answer_form) == (action, form)
