"""What another process takes over from the driver."""

import os

from ajet.cluster.actors import ImportEnv


def test_addresses_and_keys_of_services_are_those_of_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://judge:8000/v1")
    monkeypatch.setenv("AJET_JUDGE_API_KEY", "sk-secret")
    monkeypatch.setenv("LC_NAME", "not sent")
    sent = ImportEnv.current()
    assert "sk-secret" not in repr(sent) and "LC_NAME" not in sent.services
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.setenv("AJET_JUDGE_API_KEY", "the node's own")
    sent.enter()
    assert os.environ["OPENAI_BASE_URL"] == "http://judge:8000/v1"
    assert os.environ["AJET_JUDGE_API_KEY"] == "sk-secret"
