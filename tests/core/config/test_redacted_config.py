"""What of a config is shown and stored: ajet's own keys, free-form ones, what the user names."""

from pathlib import Path

import pytest

from ajet.core.config import AjetConfig, load_config, load_stages
from ajet.core.config.redacted import redacted_config, redacted_value, shown_override
from ajet.core.errors import ConfigError
from ajet.core.text.redaction import is_secret_key, redact, remember_secrets

YAMLS = sorted(Path(__file__).parents[3].glob("tutorial/**/*.yaml"))
TUTORIALS = [path for path in YAMLS if "\najet:" in path.read_text()]
NAMES = [
    "aws_access_key_id",
    "GITHUB_PAT",
    "passphrase",
    "pwd",
    "Cookie",
    "auth_key",
    "authorization",
    "openai_key",
    "private_key",
    "accessKey",
    "X-Api-Key",
    "hf_token",
    "session_cookies",
    "clientSecret",
    "dbpassword",
]
CONFIG = """
ajet:
  model: {path: m}
  not_secret: [mine.greeting, mine.kept, mine.list.*.word, mine.kept.exact_key]
mine:
  greeting: hello
  kept: {word: hello, api_key: S3cret-one, exact_key: hello}
  list: [{word: hello, other: hello}]
  other: hello
  password: 90817263
"""


@pytest.fixture
def yaml_path(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    return path


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nothing_of_a_tutorials_config_is_masked(path):
    for config in load_stages(path):
        assert redacted_config(config) == config.to_dict()


def test_the_sections_of_ajets_own_suites_are_stored_as_they_are(yaml_path):
    sections = {"tau2": {"user_model": "qwen"}, "suite": {"name": "arc", "data": "arc/"}}
    config = AjetConfig.model_validate({"ajet": {"model": {"path": "m"}}} | sections)
    assert {name: redacted_config(config)[name] for name in sections} == sections


def test_the_user_says_what_is_no_secret_and_a_key_that_names_one_must_be_named_itself(yaml_path):
    assert redacted_config(load_config(yaml_path))["mine"] == {
        "greeting": "hello",
        "kept": {"word": "hello", "api_key": "***", "exact_key": "hello"},
        "list": [{"word": "hello", "other": "***"}],
        "other": "***",
        "password": "***",
    }


@pytest.mark.parametrize("key", NAMES)
def test_a_key_that_names_a_secret_is_known_in_every_spelling(key):
    is_masked = redacted_value(f"mine.{key}", "value") == "***"
    assert is_masked and redacted_value("mine.kept", {key: "value"}) == {key: "***"}


@pytest.mark.parametrize("key", ["tokenizer", "max_tokens", "path", "keyboard", "num_patches"])
def test_other_words_are_no_names_of_secrets(key):
    assert not is_secret_key(key)


def test_a_list_loses_what_follows_a_flag_and_what_is_written_into_it():
    given = ["--api-key", "S3cret", "--token=S3cret", "file.txt"]
    assert redacted_value("mine.path", given) == ["--api-key", "***", "--token=***", "file.txt"]
    assert redacted_value("mine.args", given) == ["***"] * 4


def test_a_value_from_the_environment_is_stored_as_its_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "S3cret-from-there")
    path = tmp_path / "run.yaml"
    path.write_text(
        "ajet: {model: {path: '${oc.env:MY_KEY}'}}\n"
        "mine: {key: '${oc.env:MY_KEY,fallback}', same: '${mine.key}', unset: '${oc.env:NO,pw}'}\n"
    )
    config = load_config(path)
    shown = redacted_config(config)
    assert shown["mine"] == {
        "key": "${oc.env:MY_KEY}",
        "same": "${oc.env:MY_KEY}",
        "unset": "***",
    }
    assert shown["ajet"]["model"]["path"] == "S3cret-from-there"  # a path is no secret
    assert config.mine.key == "S3cret-from-there"


def test_three_stars_in_a_yaml_are_refused_with_the_key(yaml_path):
    yaml_path.write_text("ajet: {model: {path: m}}\nmine: {url: 'https://***@host/'}\n")
    with pytest.raises(ConfigError, match=r"run\.yaml:2: mine\.url: \*\*\* stands for a value"):
        load_config(yaml_path)
    yaml_path.write_text("ajet: {model: {path: m}, not_secret: [mine.rule]}\nmine: {rule: '***'}\n")
    assert load_config(yaml_path).mine.rule == "***"


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("ajet.seed=3", "ajet.seed=3"),
        ("ajet.model.path=here", "ajet.model.path=here"),
        ("+mine.size=3", "+mine.size=3"),
        ("+mine.mode=fast", "+mine.mode=fast"),
        ("+mine.openai_key=S", "+mine.openai_key=***"),
        ("+mine.seller=S", "+mine.seller=***"),
        ("+mine.args=[--api-key,S]", "+mine.args=***"),
        ("mine.headers={Authorization: S}", "mine.headers=***"),
        ("+mine.url=http://me:S@host", "+mine.url=http://***@host"),
        ("~mine.key", "~mine.key"),
    ],
)
def test_an_override_is_shown_without_its_secret(override, shown):
    assert shown_override(override) == shown


@pytest.mark.parametrize(
    "overrides",
    [["mine.sellers=S3cret"], ["ajet.modle.api_key=S3cret"], ["ajet.seed={api_key: S3cret}"]],
)
def test_an_error_does_not_quote_a_secret(yaml_path, overrides):
    with pytest.raises(ConfigError) as failed:
        load_config(yaml_path, overrides)
    assert "S3cret" not in str(failed.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc", "Authorization: ***"),
        ("asked with Bearer abcdefgh", "asked with Bearer ***"),
        ("{'api_key': 'S', 'size': 3}", "{'api_key': '***', 'size': 3}"),
        ('["--api-key", "S"]', '["--api-key", "***"]'),
        ("server --api-key S --port 3", "server --api-key *** --port 3"),
        ("password=S, size=3", "password=***, size=3"),
        ("https://h/x?a=1&token=S&b=2", "https://h/x?a=1&token=***&b=2"),
        ("x.yaml:3: mine.api_key: no such key", "x.yaml:3: mine.api_key: no such key"),
        ("512 tokens: max_tokens=512", "512 tokens: max_tokens=512"),
        ("expected 'token' or 'text'", "expected 'token' or 'text'"),
    ],
)
def test_the_forms_of_a_secret_are_found_in_a_text(text, shown):
    assert redact(text) == shown


def test_what_was_masked_and_what_the_environment_holds_is_cut_from_log_lines(
    yaml_path, monkeypatch
):
    monkeypatch.setenv("SOME_SERVICE_TOKEN", "first/of-the-two")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/agent-socket")
    load_config(yaml_path)
    remember_secrets(['quo"ted-secret'])
    text = "S3cret-one first/of-the-two /tmp/agent-socket 'quo\\\"ted-secret' hello"
    assert redact(text) == "*** *** /tmp/agent-socket '***' hello"


def test_a_filter_of_recorded_conversations_loses_its_key_alone():
    given = {"type": "deduplication", "params": {"api_key": "S", "db_path": "vectors.db"}}
    other = {"type": "regex", "params": {"pattern": "^a"}, "enabled": True}
    tracing = {"task_reader": {"tracing": {"filters": [given, other]}}}
    shown = redacted_config(AjetConfig.model_validate({"ajet": tracing}))
    first, second = shown["ajet"]["task_reader"]["tracing"]["filters"]
    assert first == given | {"params": {"api_key": "***", "db_path": "vectors.db"}}
    assert second == other


def test_the_value_of_a_mistyped_key_of_ajets_is_shown_unless_it_is_a_secret():
    assert redacted_value("ajet.rollout.foo.policy", "greedy") == "greedy"
    assert redacted_value("ajet.rollout.tempreature", "0.7") == "0.7"
    assert redacted_value("ajet.rollout.foo.api_key", "abcdefgh") == "***"
    assert redacted_value("ajet.rollout.foo.url", "http://me:pass@host/x") == "http://***@host/x"
