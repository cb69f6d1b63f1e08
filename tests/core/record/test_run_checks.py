"""Each check on a history made by hand: just beyond its bound it warns, just within it does not."""

import math

import pytest

from ajet.core.record.run_checks import (
    WINDOW,
    MetricsHistory,
    entropy_collapse,
    format_correlation,
    gap_line,
    length_correlation,
    reward_without_success,
    run_checks,
    sampler_gap,
    truncation,
)


def history(*steps, held_out=()):
    """Steps from 1 on; `held_out` maps a step to the success of 200 tasks after it."""
    made = MetricsHistory()
    validations = dict(held_out)
    for step, metrics in enumerate([{}, *steps]):
        if step:
            made.add(step, metrics)
        if step in validations:
            made.add(step, {"held_out/success": validations[step], "held_out/tasks": 200.0})
    return made


def cut(number, total=256, aborted=0):
    return {
        "episodes/cut": float(number),
        "episodes/cut_max_steps": float(number),
        "episodes/total": float(total),
        "episodes/aborted": float(aborted),
    }


def test_truncation_is_warned_of_with_its_interval_and_limit():
    found = truncation(history(cut(52), cut(52)))
    assert found is not None and found.step == 2
    assert found.text.startswith("20% of the episodes of steps 1 to 2 were cut by a limit (104 of")
    assert "most by max_steps" in found.text and found.values["low"] > 0.1


@pytest.mark.parametrize("number", [0, 26, 35])
def test_a_share_whose_interval_reaches_a_tenth_is_no_warning(number):
    assert truncation(history(cut(number))) is None


def test_members_that_were_stopped_early_are_not_counted_as_episodes():
    assert truncation(history(cut(20, total=200, aborted=150))) is not None
    assert truncation(history(cut(20, total=200))) is None


def certain(entropies, success=0.4):
    return history(*({"update/entropy": e, "reward/success": success} for e in entropies))


def test_entropy_collapse_needs_a_tenth_of_the_start_and_failures():
    assert entropy_collapse(certain([0.5] * 5 + [0.04] * 5)) is not None
    assert entropy_collapse(certain([0.5] * 5 + [0.06] * 5)) is None
    assert entropy_collapse(certain([0.5] * 5 + [0.04] * 4)) is None  # too few steps
    assert entropy_collapse(certain([0.5] * 5 + [0.04] * 5, success=0.9)) is None  # it has learnt


def test_where_no_success_is_reported_the_line_claims_none():
    found = entropy_collapse(certain([0.5] * 5 + [0.04] * 5, success=0.0))
    assert found is not None and "no episode is reported as a success" in found.text


def rewards(*values):
    return [{"reward/mean": value} for value in values]


RISING = rewards(*[0.30, 0.32, 0.29, 0.31, 0.30], *[0.60, 0.61, 0.59, 0.62, 0.60])


def test_a_reward_that_rises_while_held_out_success_falls_is_warned_of():
    found = reward_without_success(history(*RISING, held_out=[(0, 0.60), (10, 0.40)]))
    assert found is not None
    assert "rose from 0.304 to 0.604" in found.text
    assert "fell from 60.0% (after step 0) to 40.0% (after step 10)" in found.text


@pytest.mark.parametrize(
    ("steps", "held_out"),
    [
        (RISING, [(0, 0.60), (10, 0.55)]),  # within the interval of 200 tasks
        (RISING, [(0, 0.40), (10, 0.60)]),  # it rises
        (RISING[::-1], [(0, 0.60), (10, 0.40)]),  # both fall
        (RISING, [(10, 0.40)]),  # validated once
        (RISING[3:7], [(0, 0.60), (4, 0.40)]),  # too few steps to tell
        (rewards(*[0.1, 0.6] * 5), [(0, 0.60), (10, 0.40)]),  # noise
    ],
)
def test_what_its_intervals_do_not_show_is_no_warning(steps, held_out):
    assert reward_without_success(history(*steps, held_out=held_out)) is None


def correlated(r, episodes=200.0, num=10, kind="length"):
    return history(
        *[{f"correlation/reply_{kind}": r, "correlation/episodes": episodes}] * num,
    )


def test_a_reward_that_follows_the_length_is_warned_of_with_its_interval():
    found = length_correlation(correlated(0.7))
    assert found is not None and "longer replies earn more" in found.text
    assert found.values["r"] == pytest.approx(0.7)
    half = 3.2905 / math.sqrt(10 * 198)
    assert found.values["low"] == pytest.approx(math.tanh(math.atanh(0.7) - half), abs=1e-6)
    shorter = length_correlation(correlated(-0.7))
    assert shorter is not None and "shorter replies earn more" in shorter.text


def test_a_weak_correlation_or_one_of_few_episodes_is_no_warning():
    assert length_correlation(correlated(0.45)) is None
    assert length_correlation(correlated(0.54)) is None  # its interval begins below 0.5
    assert length_correlation(correlated(1.0, episodes=19.0)) is None
    assert length_correlation(correlated(0.9, kind="format")) is None
    assert format_correlation(correlated(0.9, kind="format")) is not None


def test_only_the_last_ten_steps_count():
    steps = [{"correlation/reply_length": 0.9, "correlation/episodes": 200.0}] * 5
    later = [{"correlation/reply_length": 0.1, "correlation/episodes": 200.0}] * 10
    assert length_correlation(history(*steps, *later)) is None


def test_a_gap_between_sampler_and_trainer_is_warned_of_above_its_bound():
    metrics = {
        "update/sampler_kl": 0.03,
        "update/sampler_ess": 0.9,
        "update/sampler_ratio_max": 12.0,
    }
    assert gap_line(metrics, 0.03) is None
    assert gap_line({"update/sampler_kl": -0.5}, 0.02) is None
    assert gap_line({}, 0.02) is None  # a step without an update
    assert gap_line({"update/sampler_kl": math.nan}, 0.02) is not None
    found = sampler_gap(0.02)(history(metrics))
    assert found is not None and found.values == {"kl": 0.03, "max_kl": 0.02}
    assert "KL 0.03 nats a token (bound 0.02" in found.text


def test_no_check_warns_of_a_step_that_has_only_the_usual_numbers():
    steps = [
        cut(3)
        | {"reward/mean": 0.3, "reward/success": 0.3, "update/entropy": 0.1}
        | {"update/sampler_kl": 1e-9, "correlation/episodes": 0.0}
    ]
    assert [check(history(*steps)) for check in run_checks(0.02)] == [None] * 5


class NeverReadWhole(list):
    def __iter__(self):
        raise AssertionError("all steps are read, in each step")


def test_a_check_takes_no_longer_and_the_history_little_more_the_longer_the_run():
    usual = cut(3) | {"reward/mean": 0.3, "reward/success": 0.3, "update/entropy": 0.1}
    validations = {step: 0.5 - step / 2000 for step in range(0, 300, 30)}
    made = history(*[usual | {"update/seconds": 1.0}] * 300, held_out=validations)
    assert all("update/seconds" not in metrics for _, metrics in made.steps[:-WINDOW])
    assert all(metrics["update/seconds"] for _, metrics in made.steps[-WINDOW:])
    made.steps = NeverReadWhole(made.steps)
    for check in (*run_checks(0.02), reward_without_success):
        check(made)


def test_the_history_of_a_run_is_read_back_from_its_record(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 0, "time": 1.0, "held_out/success": 0.5, "held_out/tasks": 4.0}\n'
        '{"step": 1, "time": 2.0, "reward/mean": null, "update/entropy": 0.5}\n'
    )
    with path.open("ab") as file:  # what a disk or an editor may leave
        file.write(b'\xff\xfe\n[1]\n{"step": "x"}\n{"step": 2, "reward/mean": "much"}\n')
        file.write(b'{"step": 3, "reward/mean": 1%s}\n' % (b"0" * 400))  # more than a float holds
    read = MetricsHistory.read(path)
    assert [step for step, _ in read.steps] == [1, 2] and [s for s, _ in read.held_out] == [0]
    assert read.recent("reward/mean") == [] and read.recent("update/entropy") == [0.5]
