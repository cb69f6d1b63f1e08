"""What is recorded of a training run: data as episodes, values by hand, and how readers take it."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.core.record.run_folder import RunFolder
from ajet.read.episode_reader import EpisodeReader
from ajet.read.logview.run_page import RunPage, compared_configs
from ajet.read.recorded_run import runs_in
from ajet.serve.tinker.step_data import MAX_SPANS, ComputedDatum
from ajet.serve.tinker.store import StepRecord
from ajet.serve.tinker.wire import Datum, LossResult
from tests.serve.tinker.server_process import MODEL, serving

LOG2 = float(np.log(2))
OPTIMIZER = {"update/grad_norm": 0.5, "update/lr": 0.01}
BOUNDS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}


def text_of(ids):
    return " ".join(map(str, ids))


def datum_of(ids, **tensors):
    inputs = {name: np.array(values, np.float32) for name, values in tensors.items()}
    return Datum(np.array(ids[:-1]), {"target_tokens": np.array(ids[1:]), **inputs})


def computed(datum, logprobs, loss="ppo", config=BOUNDS):
    return ComputedDatum(loss, config, datum, np.array(logprobs, np.float32))


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path)
    folder.logs.mkdir()
    return folder


@pytest.fixture
def record(folder):
    record = StepRecord(folder, text_of)
    yield record
    record.close()


def add(record, data, logprobs, loss="ppo", config=BOUNDS, sum_of_losses=0.0):
    logprobs = [np.array(values, np.float32) for values in logprobs]
    record.add(loss, config, data, LossResult(logprobs, sum_of_losses))


def episode(folder, name):
    with EpisodeReader(folder.episodes_db) as reader:
        return reader.episode(name)


def names(folder):
    with EpisodeReader(folder.episodes_db) as reader:
        return sorted(row.episode_id for row in reader.list())


def metrics(folder):
    return [json.loads(line) for line in folder.metrics_jsonl.read_text().splitlines()]


def test_data_with_one_prompt_are_a_group_token_by_token(folder, record):
    # Prompt 1 2, replies 7 8 and 9. Ratios 2 and 1/2: the first is cut above, and so is the third,
    # whose advantage is negative, below.
    first = datum_of([1, 2, 7, 8], logprobs=[0, -2, -1], advantages=[0, 1, 1])
    second = datum_of([1, 2, 9], logprobs=[0, -1], advantages=[0, -0.5])
    other = datum_of([3, 9], logprobs=[-1], advantages=[0])
    add(record, [first, second], [[-9, LOG2 - 2, -1], [-9, -LOG2 - 1]], sum_of_losses=-1.7)
    add(record, [other], [[-1.5]], sum_of_losses=0.0)
    record.step(OPTIMIZER)
    assert names(folder) == [
        "000001-train-0000-00",
        "000001-train-0000-01",
        "000001-train-0001-00",
    ]
    one = episode(folder, "000001-train-0000-00")
    assert (one.row.step, one.row.query, one.row.reward) == (1, "1 2", None)
    assert one.metadata == {"loss_fn": "ppo", "request": 0, "datum": 0}
    (turn,) = one.turns
    assert (turn.prompt_ids.tolist(), turn.token_ids.tolist()) == ([1, 2], [7, 8])
    assert turn.messages == [{"role": "prompt", "content": "1 2"}]
    assert turn.reply == {"role": "assistant", "content": "7 8"}
    assert turn.logprobs.tolist() == [-2, -1]
    assert turn.advantages.tolist() == [1, 1] and turn.loss_mask.tolist() == [1, 1]
    assert turn.trained.numbers["ratios"].tolist() == pytest.approx([2, 1])
    assert turn.trained.numbers["policy_logprobs"].tolist() == pytest.approx([LOG2 - 2, -1])
    assert turn.trained.cuts == {"high": [0]} and not turn.notes.is_given
    two = episode(folder, "000001-train-0000-01")
    assert two.row.advantage == -0.5 and two.turns[0].trained.cuts == {"low": [0]}
    assert two.row.task_id == one.row.task_id
    three = episode(folder, "000001-train-0001-00")
    assert three.turns[0].loss_mask.tolist() == [1]  # sampled, though nothing is learnt from it
    assert three.metadata == {"loss_fn": "ppo", "request": 1, "datum": 0}

    (row,) = metrics(folder)
    wanted = {
        "step": 1,
        "update/loss": -1.7,
        "update/pg_loss": -1.7 / 4,
        "update/grad_norm": 0.5,
        "update/ratio_max": 2.0,
        "update/clip_fraction_low": 1 / 4,
        "update/clip_fraction_high": 1 / 4,
        "update/sampler_kl": (0.5 - LOG2 + LOG2) / 4,  # the mean of -log ratio
        "update/logprob_diff_max": LOG2,
        "advantage/mean": 1.5 / 4,
        "advantage/abs_mean": 2.5 / 4,
        "advantage/zero_episodes": 1 / 3,
        "tokens/sampled": 4,
        "tokens/trained": 4,
        "tokens/trained_without_advantage": 1,
        "episodes/total": 3,
        "episodes/turns_mean": 1,
        "groups/total": 2,
        "groups/with_advantage": 1,
        "tinker/requests": 2,
        "tinker/left_out": 0,
    }
    assert {name: row[name] for name in wanted} == pytest.approx(wanted)


def test_each_span_of_sampled_tokens_is_a_turn_that_continues_the_one_before(folder, record):
    ids = [1, 2, 7, 8, 3, 4, 9]
    advantages = [0, 2, 2, 0, 0, -1]
    logprobs = [0, -1, -1, 0, 0, -1]
    datum = datum_of(ids, logprobs=logprobs, advantages=advantages)
    add(record, [datum], [[-1] * 6], "importance_sampling", {})
    record.step(OPTIMIZER)
    first, second = episode(folder, "000001-train-0000-00").turns
    assert (first.prompt_ids.tolist(), first.token_ids.tolist()) == ([1, 2], [7, 8])
    assert (second.prompt_ids.tolist(), second.token_ids.tolist()) == ([1, 2, 7, 8, 3, 4], [9])
    assert second.base_turn == 0 and second.prompt_kept == 4
    assert [message["content"] for message in second.messages] == ["1 2", "7 8", "3 4"]
    assert first.advantages.tolist() == [2, 2] and second.advantages.tolist() == [-1]
    assert second.trained.cuts == {}


def test_weights_of_given_tokens_are_where_advantages_are(folder, record):
    datum = datum_of([1, 2, 7, 8], weights=[0, 0.5, 1])
    add(record, [datum], [[-3, -2, -1]], "cross_entropy", {}, sum_of_losses=2.0)
    record.step(OPTIMIZER)
    (turn,) = episode(folder, "000001-train-0000-00").turns
    assert turn.advantages.tolist() == [0.5, 1] and turn.notes.is_given
    assert turn.logprobs.tolist() == turn.trained.numbers["policy_logprobs"].tolist() == [-2, -1]
    assert "ratios" not in turn.trained.numbers
    (row,) = metrics(folder)
    assert row["update/cross_entropy"] == 1.5 and row["update/loss"] == 2.0
    assert "update/sampler_kl" not in row and "advantage/mean" not in row


def test_data_with_several_targets_at_a_position_are_counted_and_left_out(folder, record):
    tensors = {"target_tokens": np.ones((2, 3), np.int64), "weights": np.ones((2, 3), np.float32)}
    several = Datum(np.array([1, 2]), tensors)
    one = datum_of([1, 2], weights=[1])
    add(record, [several, one], [np.zeros((2, 3)), [-1]], "cross_entropy", {})
    record.step(OPTIMIZER)
    assert episode(folder, "000001-train-0000-00").metadata["datum"] == 1
    assert metrics(folder)[0]["tinker/left_out"] == 1


def test_bounds_of_each_loss():
    ids = [1, 2, 3, 4]
    inputs = {"logprobs": [-1, -1, -1], "advantages": [1, -1, 1]}
    policy = [-1 - LOG2, -1 + LOG2, -1 + LOG2]  # ratios 1/2, 2, 2

    def cuts(loss, **more):
        datum = computed(datum_of(ids, **inputs, **more), policy, loss)
        return {name: np.flatnonzero(is_cut).tolist() for name, is_cut in datum.cuts.items()}

    # ppo's bounds act only where they make the loss larger, cispo's on the weight of any token.
    assert cuts("ppo") == {"low": [], "high": [2]}
    assert cuts("cispo") == {"low": [0], "high": [1, 2]}
    # gspo: the mean of log 2 and log 2 over the marked tokens.
    assert cuts("gspo", sequence_ratio_mask=[0, 1, 1]) == {"low": [], "high": [0, 2]}
    assert computed(datum_of(ids, **inputs), policy, "dro", {"beta": 0.1}).cuts == {}


def test_a_certain_token_without_advantage_does_not_divide_a_reply():
    # The third token was sampled with probability 1, and so was the last.
    ids, advantages = [1, 2, 3, 4, 5], [0, 0, 0, 0]
    datum = datum_of(ids, logprobs=[0, -1, 0, 0], advantages=advantages)
    assert computed(datum, [-3, -1, -1e-5, 0]).spans == [(1, 4)]
    assert computed(datum, [-3, -1, -1e-5, -2]).spans == [(1, 2)]  # a token that was not sampled
    with_advantage = datum_of(ids, logprobs=[0, -1, 0, 0], advantages=[0, 1, 0, 0])
    assert computed(with_advantage, [-3, -1, 0, 0]).spans == [(1, 2)]


def test_a_datum_with_very_many_spans_is_recorded_in_few_turns(folder, record):
    weights = [0, 1] * 500
    add(record, [datum_of([1] * 1001, weights=weights)], [[-1] * 1000], "cross_entropy", {})
    record.step(OPTIMIZER)
    turns = episode(folder, "000001-train-0000-00").turns
    assert len(turns) == MAX_SPANS
    assert sum(int(turn.loss_mask.sum()) for turn in turns) == 500
    assert turns[-1].loss_mask.tolist() == weights[2 * MAX_SPANS - 1 :]


def test_a_datum_that_trains_nothing_is_an_episode_without_turns(folder, record):
    add(record, [datum_of([1, 2, 3], weights=[0, 0])], [[-1, -1]], "cross_entropy", {})
    record.step(OPTIMIZER)
    one = episode(folder, "000001-train-0000-00")
    assert one.row.query == "1 2" and one.turns == ()
    assert metrics(folder)[0]["groups/with_advantage"] == 0


def test_dropped_data_are_not_recorded_and_a_step_may_have_none(folder, record):
    add(record, [datum_of([1, 2], weights=[1])], [[-1]], "cross_entropy", {})
    record.clear()
    record.step(OPTIMIZER)
    assert names(folder) == []
    assert metrics(folder)[0]["episodes/total"] == 0


def test_steps_after_the_last_one_are_removed_and_written_again(folder, record):
    for token in (7, 8, 9):
        add(record, [datum_of([1, token], weights=[1])], [[-1]], "cross_entropy", {})
        record.step(OPTIMIZER)
    record.close()
    again = StepRecord(folder, text_of, last_step=1)
    assert names(folder) == ["000001-train-0000-00"]
    add(again, [datum_of([1, 5], weights=[1])], [[-1]], "cross_entropy", {})
    again.step(OPTIMIZER)
    again.close()
    assert [row["step"] for row in metrics(folder)] == [1, 2]
    assert episode(folder, "000002-train-0000-00").turns[0].token_ids.tolist() == [5]


def test_a_record_that_cannot_be_written_does_not_stop_training(record):
    record.close()
    add(record, [datum_of([1, 2], weights=[1])], [[-1]], "cross_entropy", {})
    record.step(OPTIMIZER)
    assert record.last_step == 1


PROMPT, REPLY = [16, 17, 220, 10, 220, 20, 220, 28], [220, 16, 22]  # 12 + 5 = / 17


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server's folder, and the ids of two runs that the SDK has trained on it: one of an adapter
    of rank 8, in whose second step a request was refused, and one of rank 4."""
    tinker = pytest.importorskip("tinker")
    types, folder = tinker.types, tmp_path_factory.mktemp("served")

    def datum(reply, advantage):
        ids, zeros = PROMPT + reply, [0.0] * (len(PROMPT) - 1)
        tensors = {"logprobs": zeros + [-1.0] * len(reply)}
        tensors["advantages"] = zeros + [advantage] * len(reply)
        inputs = {name: np.array(values, np.float32) for name, values in tensors.items()}
        inputs["target_tokens"] = np.array(ids[1:])
        return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)

    def train(service, rank):
        trainer = service.create_lora_training_client(base_model=MODEL, rank=rank, seed=3)
        trainer = trainer.result() if hasattr(trainer, "result") else trainer
        adam, data = types.AdamParams(learning_rate=0.01), [datum(REPLY, 1.0), datum([220], -1.0)]
        trainer.forward(data, "importance_sampling").result()
        trainer.forward_backward(data, "importance_sampling")
        norm = trainer.optim_step(adam).result().metrics["grad_norm"]
        if rank == 8:
            trainer.forward_backward(data, "importance_sampling")
            trainer.forward_backward(data, "dro")  # without beta
            trainer.forward_backward(data, "importance_sampling")
            with pytest.raises(Exception, match="no step was made"):
                trainer.optim_step(adam).result()
            trainer.forward_backward(data[:1], "ppo")
            trainer.optim_step(adam).result()
        return trainer.model_id.replace(":", "-"), norm

    with serving(folder) as address:
        service = tinker.ServiceClient(base_url=address, api_key="tml-test")
        runs = [train(service, rank) for rank in (8, 4)]
        service.holder.close()  # else its heartbeats go on after the server's end, and warn
    return folder, runs


@pytest.fixture
def run_folder(served):
    folder, ((name, _), _) = served
    return RunFolder(folder / "tinker" / "tinker" / name)


def test_a_run_over_http_can_be_read_by_itself(served, run_folder):
    _, ((_, norm), _) = served
    rows = metrics(run_folder)
    # The forward pass, the refused request and those whose gradients went with it are not there.
    assert names(run_folder) == [
        "000001-train-0000-00",
        "000001-train-0000-01",
        "000002-train-0000-00",
    ]
    assert rows[0]["update/grad_norm"] == pytest.approx(norm)
    assert [row["tinker/requests"] for row in rows] == [1, 1]
    page = RunPage(run_folder)
    (shown,) = page.episode("000001-train-0000-00")["turns"]
    assert "".join(shown["prompt"]["texts"]) == "12 + 5 =" and shown["sampled"]["ids"] == REPLY
    assert shown["sampled"]["advantages"] == [1, 1, 1] and shown["sampled"]["logprobs"] == [-1] * 3
    policy = np.array(shown["sampled"]["policy_logprobs"])
    assert shown["sampled"]["ratios"] == pytest.approx(np.exp(policy + 1))
    group = page.group({"step": "1", "group_id": "000001-train-0000"})
    assert [way["advantage"] for way in group["parting"]["ways"]] == [1, -1]
    assert group["has_signal"] and not page.origin()["has_agent"]
    assert [row["step"] for row in page.steps()["steps"]] == [1, 2]
    page.close()


def test_all_runs_of_a_server_are_compared(served):
    folder, runs = served
    paths = runs_in(folder)
    assert sorted(path.name for path in paths) == sorted(name for name, _ in runs)
    assert runs_in(folder / "tinker") == paths
    pages = {path.name: RunPage(RunFolder(path)) for path in paths}
    (difference,) = compared_configs(pages)
    assert difference["key"] == "ajet.trainer_common.lora.rank"
    assert difference["values"] == {name: rank for (name, _), rank in zip(runs, "84", strict=True)}


def test_traces_are_sent_and_what_needs_an_agent_is_refused_in_one_line(run_folder, tmp_path):
    run = str(run_folder.path)
    traces = tmp_path / "trace.json"
    done = CliRunner().invoke(app, ["inspect", "trace", run, "--perfetto", str(traces)])
    assert done.exit_code == 0 and "3 episodes" in done.output, done.output
    for command in (["audit"], ["replay", "000001"], ["fork", "000001", "--turn", "0"]):
        done = CliRunner().invoke(app, ["inspect", command[0], run, *command[1:]])
        assert done.exit_code == 1 and f"inspect {command[0]} needs an agent" in done.output
