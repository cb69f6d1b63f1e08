"""What AgentJet's workflows ask of their tuner beside calls of the model."""

import pytest

from ajet import ModelTuner
from tests.core.workflow.gateway.episode import HI, recorder


@pytest.fixture
def others_model():
    """Stands for somebody else's model."""
    from agentscope.model import ChatModelBase  # half a second: imported where it is used

    class QwenMax(ChatModelBase):
        async def __call__(self, *_, **__):
            raise AssertionError("nobody asks")

    return QwenMax("qwen-max", stream=False)


async def test_a_role_that_is_trained_gets_the_model_in_training_and_others_their_own(
    others_model,
):
    tuner = ModelTuner(recorder(targets=["werewolf"]))
    assert tuner.register_model("seer", default_model=others_model) is others_model
    wolf = tuner.register_model("werewolf", default_model=others_model)
    assert wolf is not others_model
    assert (tuner.get_model("seer"), tuner.get_model("werewolf")) == (others_model, wolf)
    await wolf(HI)
    [turn] = tuner._recorder.turns
    assert (turn.agent_name, turn.target_tag, turn.trainable) == ("werewolf", "werewolf", True)
    with pytest.raises(ValueError, match="no role 'witch' is registered; there are seer, werewolf"):
        tuner.get_model("witch")


async def test_a_loop_that_asks_for_an_overflow_ends_before_the_call_that_would_be_refused():
    tuner = ModelTuner(recorder("x" * 40, max_model_len=300))
    messages = list(HI)
    for _ in range(10):
        reply = await tuner.chat(messages)
        messages += [reply, {"role": "user", "content": "on"}]
        if tuner.get_context_tracker().context_overflow:
            break
    assert len(tuner._recorder.turns) < 10
    assert "filled the episode's" in tuner._recorder.truncation.detail
