"""Keys to the model and logins are cut wherever a line of the log goes."""

import time

import pytest
from loguru import logger

from ajet.core.config import AjetConfig
from ajet.core.config.redacted import redacted_config
from ajet.core.record.run_log import begin_screen_log, run_log
from ajet.core.text.redaction import FreeForm, redact

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


PREFIXES = ["nvapi-", "pplx-", "csk-", "tvly-dev-", "tgp_v1_", "dckr_pat_", "fw_", "e2b_", "ntn_"]
PREFIXES += ["lin_api_", "lsv2_pt_", "lsv2_sk_"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mysql://me:a://b@db", "mysql://***@db"),
        ("see mysql://me: x@db and http://a:b/c@d", "see mysql://me: x@db and http://a:b/c@d"),
        ("id eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0.abc_-9 end", "id *** end"),
        ("x-eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0 end", "*** end"),
        (
            "https://h/p?a=1&my_token_x=5 6&code=&sig=7",
            "https://h/p?a=1&my_token_x=*** 6&code=&sig=***",
        ),
        ("stripe sk_live_" + "4eC39HqLyjWDarjtT1", "stripe ***"),
        ("npm_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8", "***"),
        ("pypi-" + "AgEIcHlwaS5vcmcCJDU3YmQ5NTEyLWI5", "***"),
        ("gsk_" + "a1B2c3D4e5F6g7H8i9J0", "***"),
        ("xai-" + "a1B2c3D4e5F6g7H8i9J0", "***"),
        ("dapi" + "0123456789abcdef" * 2, "***"),
        ("hvs." + "CAESIJ1234567890abcdefgh", "***"),
        *((f"401 for {prefix}{'a1B2c3D4' * 8}.", "401 for ***.") for prefix in PREFIXES),
        ("dop_v1_" + "0123456789abcdef" * 4, "***"),
        ("fw_max_num_tokens_of_prompts csk-1", "fw_max_num_tokens_of_prompts csk-1"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----\nlQ\n-----END PGP PRIVATE KEY BLOCK-----.", "***."),
        ("curl -u me:s3cret https://h", "curl -u me:*** https://h"),
        ("curl --user 'me:s3cret' https://h", "curl --user 'me:***' https://h"),
        ("docker run -u 1000:1000 image", "docker run -u 1000:1000 image"),
    ],
)
def test_secrets_of_a_known_form_are_replaced(text, shown):
    assert redact(text) == shown


REPEATED = [
    "eyJ-",
    "://a",
    "://:",
    "://a:b@ ",
    "authorization:",
    "authorization: ",
    "token ",
    "-u a",
]
REPEATED += [
    "'token': \"",
    "-----BEGIN ",
    "-----END A",
    "a_pat",
    "?password",
    "Bearer  ",
    "SG.",
    "sk-",
    "csk-",
]
REPEATED += [
    "password",
    "://?password=&",
    "://a/b1",
    "--token",
    "-----BEGIN PRIVATE KEY-----",
    "_-",
]


@pytest.mark.parametrize("unit", REPEATED)
@pytest.mark.parametrize(
    ("before", "after"), [("", ""), ("://?", "=&"), ("curl 'token': \"", "\n")]
)
def test_the_work_grows_with_the_length_and_not_with_its_square(unit, before, after):
    """A model or a tool may have written the text. Sixteen times the text takes 16 times the CPU,
    or 256 times with a pattern that scans again from each place; times below a hundredth of a
    second say nothing."""

    def cpu_s(length):
        text = before + unit * (length // len(unit)) + after
        start_s = time.process_time()
        redact(text)
        FreeForm().allowed(text, "notes")
        return time.process_time() - start_s

    bound = max(0.01, 80 * min(cpu_s(3000) for _ in range(3)))
    assert any(cpu_s(48_000) < bound for _ in range(2))
