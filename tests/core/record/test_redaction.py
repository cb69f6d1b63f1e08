"""Keys to the model and logins are cut wherever a line of the log goes."""

import pytest
from loguru import logger

from ajet.core.config import AjetConfig
from ajet.core.config.redacted import redacted_config
from ajet.core.record.run_log import run_log
from ajet.core.record.screen_log import begin_screen_log
from ajet.core.redaction import redact

KEY = "sk-ajet-" + "0123456789abcdef" * 2


def test_every_key_in_a_text_is_cut_to_its_prefix():
    assert redact(f"401 for {KEY}, then {KEY}.") == "401 for sk-ajet-…, then sk-ajet-…."
    assert redact("sk-ajet-short is no key") == "sk-ajet-short is no key"


def test_the_run_log_shows_no_key_nor_the_values_of_a_traceback(tmp_path):
    with run_log(tmp_path / "run.log"):
        logger.warning(f"agent got {KEY}")
        try:
            _fail(KEY)
        except ValueError:
            logger.exception("the agent failed")
    text = (tmp_path / "run.log").read_text()
    assert "agent got sk-ajet-…" in text and "ValueError" in text
    assert KEY not in text


def test_the_screen_shows_no_key(capsys):
    begin_screen_log(verbose=False)
    logger.warning(f"agent got {KEY}")
    assert capsys.readouterr().err == "warning: agent got sk-ajet-…\n"


def _fail(key):
    raise ValueError("refused")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:s3cret@db:5432/runs", "postgresql://***@db:5432/runs"),
        ("postgresql+psycopg://me:s3/cret@db/runs", "postgresql+psycopg://***@db/runs"),
        (
            "postgresql://db/runs?user=me&password=s3cret",
            "postgresql://db/runs?user=me&password=***",
        ),
        ("http://localhost:8000/a@b", "http://localhost:8000/a@b"),
        ("sqlite:///runs/buffer.sqlite", "sqlite:///runs/buffer.sqlite"),
    ],
)
def test_an_address_shows_nobody_how_to_log_in(text, shown):
    assert redact(f"notice: {text} is ignored") == f"notice: {shown} is ignored"
    config = AjetConfig.model_validate({"trinity": {"buffer": {"url": text}}})
    assert redacted_config(config)["trinity"]["buffer"]["url"] == shown
