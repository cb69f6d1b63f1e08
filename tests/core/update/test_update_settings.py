import pytest

from ajet.core.errors import ConfigError
from ajet.core.update.settings import UpdateSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"kl_loss_type": "k4"},
        {"loss_agg_mode": "mean"},
        {"batch_layout": "trie"},
        {"lr_schedule": "linear"},
        {"mini_batch_num": 0},
        {"max_tokens_per_micro_batch": 0},
        {"lr": -1.0},
        {"lr": float("nan")},
        {"clip_low": -0.1},
        {"temperature": 0.0},
        {"dual_clip": 1.0},
        {"lr_schedule": "cosine", "warmup_steps": 5, "total_steps": 5},
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))) as caught:
        UpdateSettings(**wrong)
    assert "\n" not in str(caught.value)
