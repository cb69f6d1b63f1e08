"""Lists what a run warns of once, by name: when, and where to look.

`ajet why NAME` prints a row of this list; docs/warnings.md has the reasons for the bounds.
"""

from typing import Literal, NamedTuple

WarningName = Literal[
    "no_signal",
    "truncation",
    "entropy_collapse",
    "reward_without_success",
    "length_correlation",
    "format_correlation",
    "sampler_gap",
    "unused_model",
    "own_sampling",
    "call_form",
    "no_state_key",
    "no_turn_reward",
]


class WarningKind(NamedTuple):
    """Says when a run warns and where a person looks then, as whole sentences."""

    when: str
    look: str


FOLLOWS = (
    "The reward follows the {what} of the replies within groups: Pearson's r is beyond 0.5 with "
    "its whole 99.9 % interval, over 200 episodes at least."
)
WARNINGS: dict[str, WarningKind] = {
    "no_signal": WarningKind(
        "A step had no group with signal: no trained token had an advantage, so nothing was learnt "
        "from it. The warning follows the first such step.",
        "The line says why: all episodes failed, or were truncated, or earned the same. Look at "
        "them with `ajet debug` or `ajet view RUN`; with equal rewards, at the judge, and at tasks "
        "that are neither always solved nor never.",
    ),
    "truncation": WarningKind(
        "More than 10 % of the episodes of the last 10 steps were cut by a limit of tokens or "
        "calls; the lower end of the 99.9 % interval counts.",
        "Raise the limit that the line names, or see why the agent talks so long: a cut episode is "
        "judged by an answer that it could not give.",
    ),
    "entropy_collapse": WarningKind(
        "The entropy of the policy fell below a tenth of that of the first five steps while less "
        "than 80 % of the episodes succeed: members of a group are mostly alike.",
        "Set ajet.trainer_common.algorithm.entropy_coef or a KL loss, lower the learning rate, or "
        "go back to an earlier checkpoint.",
    ),
    "reward_without_success": WarningKind(
        "Between two validations the reward of training rose and the success on held-out tasks "
        "fell, both beyond their intervals.",
        "See what the judge rewards in episodes that do not succeed; give more tasks if the run "
        "overfits.",
    ),
    "length_correlation": WarningKind(
        FOLLOWS.format(what="length"),
        "Read a few long and a few short replies with their rewards: does the judge pay for "
        "length itself?",
    ),
    "format_correlation": WarningKind(
        FOLLOWS.format(what="form"),
        "A model that is just learning to write tool calls shows this as well. Later, see whether "
        "the judge pays for form where the answer is wrong.",
    ),
    "sampler_gap": WarningKind(
        "The KL divergence between the engine that sampled and the policy that is trained was "
        "above ajet.trainer_common.sampler_gap.max_kl (0.05 nats a token).",
        "Look at the engine's precision, at top_p and top_k, which the trainer does not apply, and "
        "at trinity.max_staleness; sampler_gap.action=stop ends the run instead.",
    ),
    "unused_model": WarningKind(
        "A step sampled no token.",
        "See that the workflow uses model_tuner as its model, and that prompts fit into "
        "ajet.data.max_prompt_length and ajet.rollout.max_model_len.",
    ),
    "own_sampling": WarningKind(
        "A trained agent asked for another temperature, top_p or top_k than the run's. It got the "
        "run's, because the update assumes them.",
        "Set ajet.rollout.temperature, top_p and top_k, and leave them out of the agent's code.",
    ),
    "call_form": WarningKind(
        "At least 10 % of a step's replies to an offer of tools had a call in a form that the "
        "run's tool parser does not read, so their agent saw no call.",
        "Set ajet.rollout.tool_parser to the parser that the line names, or teach the model the "
        "form of its chat template, by the prompt or a supervised stage. A benchmark's functions "
        "can be offered in its own prompt instead, with +suite.prompting=text.",
    ),
    "no_state_key": WarningKind(
        "With adv_estimator gigpo no trained turn of a step had a state key, so no step was "
        "credited on its own.",
        "Note the state with model_tuner.credit_turn(state_key=…), or let the environment put it "
        "into info.",
    ),
    "no_turn_reward": WarningKind(
        "With adv_estimator step_reinforce no trained turn of a step had a separate reward, so the "
        "last turn got all of it.",
        "Note each turn's reward with model_tuner.credit_turn(reward=…).",
    ),
}
