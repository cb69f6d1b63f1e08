"""How the model went on, over the steps, from the text before one token."""

import numpy as np
import pytest
from logview_fixtures import write_run
from record_fixtures import episode, group_of

from ajet.core.errors import DataError
from ajet.core.inference.endpoint import Completion
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.scores import EpisodeScores, add_scores
from ajet.core.trajectory.turn import Turn
from ajet.read.logview.run_page import RunPage

FIRST = "000001-train-0000-00"


def said(*tokens, logprobs=None, prompt=(100, 101)):
    completion = Completion(prompt, tokens, logprobs or (-0.5,) * len(tokens), "stop", 0)
    user = {"role": "user", "content": "?"}
    return (Turn(completion, [user], None, {"role": "assistant", "content": "!"}),)


def token_at(folder, turn, token):
    page = RunPage(folder)
    try:
        return page.token({"episode": FIRST, "turn": str(turn), "token": str(token)})
    finally:
        page.close()


def test_a_token_is_followed_through_the_episodes_that_came_to_the_same_text(tmp_path):
    half, quarter = float(np.log(0.5)), float(np.log(0.25))
    folder = RunFolder(tmp_path)
    with EpisodeStore(folder.episodes_db) as store:
        store.write(1, [group_of(
            episode(member=0, turns=said(1, 2, 3, logprobs=(0.0, half, 0.0))),
            episode(member=1, turns=said(1, 5)),
            episode(member=2, turns=said(9, 2)),  # another text before it
            episode(member=3, turns=said(1)),  # ended before it
            episode(member=4, turns=said(1, 2, prompt=(100, 102))),  # another prompt
            episode(member=5, turns=()),
        )])  # fmt: skip
        later = [
            episode(step=4, member=m, turns=said(1, 2, logprobs=(0.0, quarter))) for m in (0, 1)
        ]
        store.write(4, [group_of(*later)])
        store.write(4, [group_of(episode(step=4, group=1, turns=said(1, 2)))])  # another task
    found = token_at(folder, 0, 1)
    steps = [(each["step"], each["num"], each["chose"], each["p"]) for each in found["steps"]]
    assert steps == [(1, 2, 1, pytest.approx(0.5)), (4, 2, 2, pytest.approx(0.25))]
    assert found["tokens"] == [
        {"text": "<2>", "num": 3, "is_chosen": True},
        {"text": "<5>", "num": 1, "is_chosen": False},
    ]
    assert (found["num_compared"], found["scores"]) == (8, [])


def test_a_token_that_was_scored_has_its_curve_and_one_that_is_not_there_is_not_found(tmp_path):
    folder = write_run(tmp_path / "math")
    after = EpisodeScores(8, [[-1, -1.5]])
    add_scores(folder, FIRST, [EpisodeScores(0, [[-1, -2, -3], [-4, -5]]), after])
    found = token_at(folder, 0, 1)
    assert found["scores"] == [{"step": 0, "logprob": -2}, {"step": 8, "logprob": -1.5}]
    for turn, token in ((0, 3), (2, 0), (-1, 0), (0, -1)):
        with pytest.raises(DataError):
            token_at(folder, turn, token)
