"""Success on held-out prompts of the recipes in tinker_recipes.py, sampled and greedy.

Runs in the Python that has tinker-cookbook, against the server at TINKER_BASE_URL:

    python tinker_recipes_measures.py math_rl MODEL [--sampler-path tinker://…]
"""

# pyright: reportMissingImports=false

import argparse
import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tinker
from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.recipes import rl_loop
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticEnv
from tinker_cookbook.recipes.multiplayer_rl.guess_number import env as guess_number
from tinker_cookbook.recipes.multiplayer_rl.text_arena.env import TwoPlayerEnvGroupBuilder
from tinker_cookbook.recipes.multiplayer_rl.text_arena.tictactoe import RandomOpponent
from tinker_cookbook.recipes.multiplayer_rl.twenty_questions import env as twenty_questions
from tinker_cookbook.recipes.preference.shorter.env import (
    ShorterComparisonBuilder,
    ShorterPreferenceModelBuilder,
)
from tinker_cookbook.recipes.prompt_distillation.create_data import LANGUAGE_CLASSIFICATION_PROMPT
from tinker_cookbook.renderers import get_renderer, get_text_content
from tinker_cookbook.rl.metric_util import RLTestSetEvaluator
from tinker_cookbook.rl.preference_envs import PairwisePreferenceDataset
from tinker_cookbook.rl.problem_env import ProblemGroupBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_recipes_models import (
    STARTS,
    guess_numbers,
    is_held_out,
    labelled_sentences,
    problem_prompt,
    twenty_questions_data,
)


@dataclass
class HeldOut:
    """An RLDataset of one batch, as the cookbook's evaluators want it."""

    builders: list[Any]

    def get_batch(self, index: int) -> list[Any]:
        return self.builders

    def __len__(self) -> int:
        return 1


def held_out_pairs() -> list[tuple[int, int]]:
    """Pairs that are neither in a demonstration nor drawn by math_rl in any of its batches."""
    drawn = set()
    for batch in range(100):
        rng = np.random.RandomState(batch)
        drawn |= {(rng.randint(0, 101), rng.randint(0, 101)) for _ in range(100)}
    pairs = [(x, y) for x in range(101) for y in range(101) if is_held_out(x, y)]
    return random.Random(1).sample([pair for pair in pairs if pair not in drawn], 200)


def held_out_sums(renderer: Any) -> HeldOut:
    prefix = ArithmeticEnv.standard_fewshot_prefix()
    envs = [partial(ArithmeticEnv, x, y, renderer, prefix) for x, y in held_out_pairs()]
    return HeldOut([ProblemGroupBuilder(env, num_envs=1) for env in envs])


def held_out_numbers(renderer: Any) -> HeldOut:
    _, numbers = guess_numbers()
    return HeldOut([guess_number.GuessNumberEnvGroupBuilder(n, renderer, 1) for n in numbers])


def the_question(renderer: Any) -> HeldOut:
    """The recipe has no other prompt."""
    data = PairwisePreferenceDataset(
        ShorterComparisonBuilder(), renderer, 4, ShorterPreferenceModelBuilder()(), group_size=16
    )
    return HeldOut(data.get_batch(0))


@dataclass(frozen=True)
class Environments:
    """Success as the cookbook's evaluator measures it in the recipe's own environment; `metric` is
    its name of what is reported."""

    start: str
    held_out: Callable[[Any], Any]
    max_tokens: int
    metric: str

    async def __call__(self, client: Any, renderer: Any, temperature: float) -> float:
        policy = TinkerTokenCompleter(client, self.max_tokens, temperature)
        evaluator = RLTestSetEvaluator(self.held_out(renderer), self.max_tokens)
        return (await evaluator.eval_token_completer(policy))[self.metric]


@dataclass(frozen=True)
class Prompts:
    """The share of held-out prompts with a right reply, for recipes without an environment."""

    start: str
    held_out: Callable[[], list[tuple[list[dict[str, str]], Callable[[str], bool]]]]
    max_tokens: int
    renderer: str = ""

    async def __call__(self, client: Any, renderer: Any, temperature: float) -> float:
        renderer = get_renderer(self.renderer, renderer.tokenizer) if self.renderer else renderer
        params = tinker.SamplingParams(
            max_tokens=self.max_tokens, temperature=temperature, stop=renderer.get_stop_sequences()
        )

        async def is_right(messages: list[dict[str, str]], judge: Callable[[str], bool]) -> bool:
            prompt = renderer.build_generation_prompt(messages)
            reply = await client.sample_async(prompt, 1, params)
            message, _ = renderer.parse_response(reply.sequences[0].tokens)
            return judge(get_text_content(message))

        replies = [is_right(*prompt) for prompt in self.held_out()]
        return sum(await asyncio.gather(*replies)) / len(replies)


def held_out_problems() -> list[Any]:
    """The answers are judged by rl_loop's own reward."""

    def judge(x: int, y: int) -> Callable[[str], bool]:
        return lambda reply: rl_loop.get_reward(reply, f"#### {x + y}") == 1.0

    return [(problem_prompt(x, y), judge(x, y)) for x, y in held_out_pairs()]


def held_out_sentences(prompt: str = "{text}", form: str = "{}") -> list[Any]:
    """Of the sentences that nobody has learnt from, every second."""

    def judge(label: str) -> Callable[[str], bool]:
        return lambda reply: reply.strip() == form.format(label)

    return [
        ([{"role": "user", "content": prompt.format(text=text)}], judge(label))
        for text, label in labelled_sentences()[1][::2]
    ]


def random_players(renderer: Any) -> Any:
    """Games against a player who moves at random; the model begins every second."""
    opponent = TwoPlayerEnvGroupBuilder(
        game_name="TicTacToe-v0",
        renderer=renderer,
        num_envs=2,
        self_play=False,
        opponent_policy=RandomOpponent(),
    )
    return HeldOut([opponent] * 100)


def held_out_words(renderer: Any) -> HeldOut:
    """Each of the test's words, four times; the base model answers."""
    data = twenty_questions_data()
    _, words = data._get_train_and_test_words()
    answerer = data._construct_answer_completer(tinker.ServiceClient())
    build = twenty_questions.TwentyQuestionsEnvGroupBuilder
    return HeldOut([build(answerer, word, renderer, 4) for word in words])


CORRECT, REWARD = "test/env/all/correct", "test/env/all/reward/total"
LENGTH = "test/env/all/ac_tokens_per_turn"
MEASURES = {
    "math_rl": Environments("sums", held_out_sums, 5, CORRECT),
    "rl_loop": Prompts("problems", held_out_problems, 32),
    "guess_number": Environments("guesses", held_out_numbers, 64, REWARD),
    "text_arena": Environments("board", random_players, 64, REWARD),
    "twenty_questions": Environments("questions", held_out_words, 20, REWARD),
    "sl_loop": Environments("sums", held_out_sums, 8, CORRECT),
    "prompt_distillation": Prompts("languages", held_out_sentences, 32),
    # What is distilled: the same model, with the prompt.
    "teacher": Prompts(
        "languages",
        partial(held_out_sentences, LANGUAGE_CLASSIFICATION_PROMPT, "Final Answer: {}"),
        32,
        "qwen3_5_disable_thinking",
    ),
    "shorter": Environments("talk", the_question, 64, LENGTH),
}


async def measure(recipe: str, base_model: str, sampler_path: str | None) -> dict[str, Any]:
    """Success on held-out prompts at temperature 1 and greedy."""
    measured = MEASURES[recipe]
    renderer = get_renderer(STARTS[measured.start].renderer, get_tokenizer(base_model))
    client = tinker.ServiceClient()
    sampling = await client.create_sampling_client_async(
        model_path=sampler_path, base_model=None if sampler_path else base_model
    )
    return {
        "sampled": await measured(sampling, renderer, 1.0),
        "greedy": await measured(sampling, renderer, 0.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe", choices=list(MEASURES))
    parser.add_argument("model", help="the base model's name")
    parser.add_argument("--sampler-path")
    arguments = parser.parse_args()
    shares = asyncio.run(measure(arguments.recipe, arguments.model, arguments.sampler_path))
    print(json.dumps(shares))


if __name__ == "__main__":
    main()
