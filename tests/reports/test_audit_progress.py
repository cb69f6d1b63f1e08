"""The lines that tell how far an audit is where the screen cannot be redrawn."""

from ajet.cli import audit


def test_a_long_audit_prints_a_line_now_and_then(monkeypatch, capsys):
    clock = iter([0.0, 4.0, 10.0, 10.0, 19.0])
    monkeypatch.setattr(audit.time, "monotonic", lambda: next(clock))
    assert list(audit.counted(iter("abc"), 2000)) == ["a", "b", "c"]
    assert capsys.readouterr().err == "2 of 2,000 episodes\n"
