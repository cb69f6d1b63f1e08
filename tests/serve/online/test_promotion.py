"""The rule of promotion, shadow traffic and clients, with numbers worked out by hand; the swap."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from ajet.core.config.services import LearnConfig
from ajet.core.inference.endpoint import Completion, SamplingParams
from ajet.core.record.evaluation import IntervalEstimate
from ajet.serve.online.learner import ShadowView, compare_shadow, decide, describe_clients
from ajet.serve.online.models import AnsweringModel, ServedModel, ServedModels

BETTER, LIKELY, WORSE = (
    IntervalEstimate(0.1, 0.02, 0.18),
    IntervalEstimate(0.05, -0.03, 0.13),
    IntervalEstimate(-0.04, -0.1, 0.02),
)


@pytest.mark.parametrize(
    ("rule", "promoted"),
    [
        ({"promote": "interval"}, [True, False, False]),
        ({"promote": "interval", "min_difference": -0.05}, [True, True, False]),
        ({"promote": "interval", "min_difference": 0.05}, [False, False, False]),
        ({"promote": "difference"}, [True, True, False]),
        ({"promote": "difference", "min_difference": 0.06}, [True, False, False]),
        ({"promote": "difference", "max_shadow_kl": 0.3}, [True, True, False]),
        ({"promote": "difference", "max_shadow_kl": 0.1}, [False, False, False]),
    ],
)
def test_a_version_is_promoted_by_the_rule_of_the_config(rule, promoted):
    learn = LearnConfig(**rule)
    found = [decide(learn, each, {"kl": 0.2}) for each in (BETTER, LIKELY, WORSE)]
    assert [each.is_promoted for each in found] == promoted


def test_a_decision_says_its_reason():
    rolled_back = decide(LearnConfig(), LIKELY, {})
    assert rolled_back.reason == (
        "held-out success +0.050 [-0.030, +0.130]; the lower end of the difference is below 0"
    )
    too_far = decide(LearnConfig(max_shadow_kl=0.1), BETTER, {"kl": 0.25})
    assert too_far.reason.endswith("shadow KL 0.2500 is above 0.1")


def test_a_client_whose_feedback_is_unlike_the_others_is_first():
    rewards = [("ada", 1.0), ("ada", 1.0), ("bob", 1.0), ("eve", 0.0), ("eve", 0.0), ("bob", 0.0)]
    rated = [SimpleNamespace(client=client, reward=reward) for client, reward in rewards]
    # All: mean 0.5, deviation 0.5. ada: 1 against 0.25; eve: 0 against 0.75; errors
    # 0.5 * sqrt(1/2 + 1/4) = 0.433: 0.75 / 0.433 = 1.73.
    found = describe_clients(rated)
    assert [(each["client"], each["sessions"], each["reward"], each["z"]) for each in found] == [
        ("ada", 2, 1.0, 1.73),
        ("eve", 2, 0.0, -1.73),
        ("bob", 2, 0.5, 0.0),
    ]
    assert describe_clients(rated[:2])[0]["z"] == 0.0


def test_shadow_traffic_says_how_far_the_versions_are_apart():
    def view(tokens, verdicts, logprobs):
        replies = [Completion((1,), (token,), (-1.0,), "stop", 0) for token in tokens]
        return ShadowView(replies, verdicts, [np.array(each, np.float32) for each in logprobs])

    before = view([5, 6], [0.0, None], [[-1.0, -2.0], [-0.5]])
    after = view([5, 7], [1.0, 1.0], [[-1.0, -2.0], [-0.5 + np.log(2)]])
    report = compare_shadow(before, after)
    assert (report["num_sessions"], report["num_judged"], report["same_reply"]) == (2, 1, 0.5)
    assert report["kl"] == pytest.approx((2 - 1 - np.log(2)) / 3, abs=1e-6)
    assert report["difference"]["value"] == 1.0


class FakeEngine:
    """Answers when it is told to, with the version that was published to it."""

    def __init__(self):
        self.version, self.is_closed, self.may_answer = None, False, asyncio.Event()

    def publish(self, version):
        self.version = version

    def enter(self, episode_id):
        pass

    async def generate(self, prompt_ids, sampling, request_id):
        await self.may_answer.wait()
        assert not self.is_closed
        return Completion(tuple(prompt_ids), (3,), (-1.0,), "stop", self.version)

    async def close(self):
        self.is_closed = True


async def test_a_request_ends_on_the_version_that_it_began_with_and_then_its_engine_is_closed():
    engines = [FakeEngine() for _ in range(3)]
    served = [ServedModel(version, engine) for version, engine in enumerate(engines)]
    models = ServedModels(served[0], most=2)

    async def request(version):
        with models.answering(version) as model:
            reply = await AnsweringModel().generate([1], SamplingParams(), "s/0")
            return model.version, reply.policy_version

    old = asyncio.create_task(request(None))
    await asyncio.sleep(0)
    models.promote(served[1])
    models.promote(served[2])
    new, kept = asyncio.create_task(request(None)), asyncio.create_task(request(1))
    let_go = asyncio.create_task(request(0))
    await asyncio.sleep(0)
    await models.close_idle()
    assert [engine.is_closed for engine in engines] == [False, False, False]
    for engine in engines:
        engine.may_answer.set()
    assert not models.has_idle
    assert [await each for each in (old, new, kept, let_go)] == [(0, 0), (2, 2), (1, 1), (2, 2)]
    assert models.has_idle
    await models.close_idle()
    assert [engine.is_closed for engine in engines] == [True, False, False]
    assert models.versions == [1, 2]
