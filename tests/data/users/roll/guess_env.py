import random
from typing import Optional

from gem import Env
from roll.pipeline.agentic.env.parse_action_utils import default_parser_action_func
from roll.utils.random_utils import all_seed


class GuessEnv(Env):
    """A number is to be found; the seed says which."""

    def __init__(
        self,
        low: int = 1,
        high: int = 20,
        max_steps: int = 5,
        format_penalty: float = -0.1,
        action_pattern: str = r"<answer>(.*?)</answer>",
        special_token_list=("<|im_start|>", "<|im_end|>"),
        env_instruction: Optional[str] = None,
        **kwargs,
    ):
        self.ACTION_LOOKUP = {number: str(number) for number in range(low, high + 1)}
        self.env_instruction = env_instruction or "Find the number."
        self.low, self.high = low, high
        self.max_steps = max_steps
        self.format_penalty = format_penalty
        self.action_pattern = action_pattern
        self.special_token_list = special_token_list

    def get_instructions(self) -> str:
        action_lookup_str = "\nYour available actions are:\n" + ", ".join(self.ACTION_LOOKUP.values())
        return self.env_instruction + action_lookup_str

    def reset(self, seed: Optional[int] = None):
        Env.reset(self, seed)
        with all_seed(seed):
            self.number = random.randint(self.low, self.high)
        self.bounds = (self.low, self.high)
        self.step_count = 0
        return self.render(), {"env_instruction": self.get_instructions()}

    def step(self, action: str):
        self.step_count += 1
        action_info = self.parse_action(action)
        guess = action_info["action"]
        is_valid = guess is not None
        success = guess == self.number
        if is_valid and not success:
            low, high = self.bounds
            self.bounds = (max(low, guess + 1), high) if guess < self.number else (low, min(high, guess - 1))
        # the nearer the last guess, the more of the reward
        reward = 1.0 - abs(guess - self.number) / self.high if is_valid else self.format_penalty
        metrics = {
            "action_is_valid": is_valid,
            "success": success,
            "format_penalty": 0.0 if is_valid else self.format_penalty,
        }
        metrics_agg_mode = {
            "action_is_valid": "mean",
            "success": "last",
            "format_penalty": "mean",
        }
        info = {"metrics": metrics, "metrics_agg_mode": metrics_agg_mode}
        info.update(action_info)
        truncated = not success and self.step_count >= self.max_steps
        return self.render(), reward, success, truncated, info

    def parse_action(self, text):
        return default_parser_action_func(
            text, self.action_pattern, self.ACTION_LOOKUP, self.special_token_list
        )

    def render(self, mode: str = "text"):
        return "Between {} and {}. {} guesses left.".format(*self.bounds, self.max_steps - self.step_count)

    def sample_random_action(self):
        return random.choice(list(self.ACTION_LOOKUP.values()))

    def close(self):
        pass
