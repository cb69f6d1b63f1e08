"""The lines that tell how far an audit is where the screen cannot be redrawn."""

from ajet.cli import audit
from ajet.read.reports.audit import AuditFigures


def test_a_long_audit_prints_a_line_now_and_then(monkeypatch, capsys):
    clock = iter([0.0, 4.0, 10.0, 10.0, 19.0])
    monkeypatch.setattr(audit.time, "monotonic", lambda: next(clock))
    parts = [AuditFigures(episodes=500) for _ in range(3)]
    assert list(audit.with_lines(iter(parts), 2000)) == parts
    assert capsys.readouterr().err == "1,000 of 2,000 episodes\n"
