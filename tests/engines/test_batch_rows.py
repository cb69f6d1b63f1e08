"""The rows of a batch, step by step, with every figure by hand."""

from ajet.core.inference.endpoint import SamplingParams
from ajet.engines.batch import BatchRows
from ajet.engines.forward import BatchRow


def row(number, prompt, max_len, stop_ids=(), stop_check=None):
    ids = tuple(prompt)
    stops = frozenset(stop_ids)
    return BatchRow(f"e{number}/0", ids, SamplingParams(), stops, max_len, stop_check)


def test_a_finished_row_gets_no_more_tokens_and_moves_on_no_more():
    # Row 0 ends by its stop token 9, row 1 when it has 6 tokens; 9 does not stop row 1.
    rows = BatchRows([row(0, [1, 2], 9, [9]), row(1, [3, 4, 5], 6)])
    assert (rows.first_tokens_R.tolist(), rows.positions_R.tolist()) == ([2, 5], [1, 2])
    assert rows.steps_left == 7  # row 0 has 2 of 9 tokens
    rows.advance()
    assert rows.append([7, 9], [-0.5, -0.25]) == []
    assert rows.positions_R.tolist() == [2, 3]

    rows.advance()
    rows.advance()  # launched before the next tokens are known, of which 9 ends row 0
    assert rows.append([9, 7], [-1.0, -2.0]) == [(0, rows.all[0])]
    assert (rows.all[0].finish_reason, rows.num_running) == ("stop", 1)
    assert (rows.positions_R.tolist(), rows.steps_left) == ([4, 5], 4)

    assert rows.append([8, 6], [-3.0, -4.0]) == [(1, rows.all[1])]
    assert (rows.all[1].finish_reason, rows.num_running) == ("length", 0)
    rows.advance()
    assert rows.positions_R.tolist() == [4, 5]
    assert [each.ids for each in rows.all] == [[1, 2, 7, 9], [3, 4, 5, 9, 7, 6]]
    assert [each.logprobs for each in rows.all] == [[-0.5, -1.0], [-0.25, -2.0, -4.0]]


def test_a_stop_string_is_looked_for_after_every_token():
    seen = []

    def check(ids):
        seen.append(list(ids))
        return ids[-1] == 5

    rows = BatchRows([row(0, [1], 99, stop_check=check), row(1, [1], 99)])
    assert rows.append([4, 5], [0.0, 0.0]) == []
    [(number, _)] = rows.append([5, 4], [0.0, 0.0])
    assert (number, rows.all[0].finish_reason, rows.all[1].finish_reason) == (0, "stop", None)
    assert seen == [[4], [4, 5]]


def test_a_row_whose_reason_another_has_set_is_not_running():
    rows = BatchRows([row(0, [1], 3), row(1, [2], 9)])
    rows.all[0].finish_reason = "abort"
    rows.note_finished()
    assert (rows.num_running, rows.running) == (1, [rows.all[1]])
    for token in (5, 6, 7):  # more than row 0 has room for
        assert rows.append([token, token], [0.0, 0.0]) == []
    assert (rows.all[0].ids, rows.all[1].ids) == ([1], [2, 5, 6, 7])
