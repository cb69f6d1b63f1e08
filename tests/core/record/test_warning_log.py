from ajet.core.record.warning_log import RunWarning, WarningLog, read_warnings


def test_a_name_is_taken_once_also_over_a_resume(tmp_path):
    path = tmp_path / "warnings.jsonl"
    first = WarningLog(path)
    assert [
        first.add(RunWarning(step, "truncation", f"cut at {step}", {"share": 0.2}))
        for step in (3, 4)
    ] == [True, False]
    first.close()
    again = WarningLog(path, first_step=5)
    assert not again.add(RunWarning(6, "truncation", "cut at 6"))
    assert [(w.step, w.text, w.values) for w in again.warnings] == [(3, "cut at 3", {"share": 0.2})]


def test_what_was_said_beyond_the_checkpoint_is_cut_off_and_may_be_said_again(tmp_path, warnings):
    path = tmp_path / "warnings.jsonl"
    log = WarningLog(path)
    log.add(RunWarning(2, "no_signal", "none"))
    log.add(RunWarning(7, "truncation", "cut"))
    log.close()
    resumed = WarningLog(path, first_step=5)
    assert [each.name for each in read_warnings(path)] == ["no_signal"]
    assert resumed.add(RunWarning(7, "truncation", "cut"))
    assert [each.name for each in read_warnings(path)] == ["no_signal", "truncation"]


def test_a_damaged_row_is_left_out_and_said(tmp_path, warnings):
    path = tmp_path / "warnings.jsonl"
    log = WarningLog(path)
    log.add(RunWarning(1, "no_signal", "none ≤ é"))
    log.close()
    with path.open("ab") as file:
        file.write(b'\xff\xfe\n[1]\n{"step": "2", "name": "a", "text": "b"}\n{"step": 2, "na')
    assert [each.text for each in read_warnings(path)] == ["none ≤ é"]
    assert len(warnings) == 4 and "line 2 cannot be read" in warnings[0]
