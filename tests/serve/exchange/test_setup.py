"""`ajet serve`: what its config sets, and what it refuses in one line."""

import pytest
from typer.testing import CliRunner

from ajet.backbones import BACKBONES, fit
from ajet.cli.launcher import app
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.serve.exchange.setup import check_can_serve, make_exchange_gateway
from ajet.servers.process import free_port

YAML = "ajet: {model: {path: 'embedded:math'}, task_reader: {type: random_dummy}}\n"


@pytest.fixture
def config_of(tmp_path):
    (tmp_path / "serve.yaml").write_text(YAML)
    return lambda *overrides: load_config(tmp_path / "serve.yaml", overrides)


def test_the_server_has_the_configs_settings(config_of):
    port = free_port()
    config = config_of(
        "ajet.serve.host=127.0.0.2",
        f"ajet.serve.port={port}",
        "ajet.serve.heartbeat_s=7.0",
        "ajet.serve.tasks=client",
        "ajet.rollout.episode_timeout_s=50.0",
    )
    gateway = make_exchange_gateway(config, "key")
    assert gateway.listen() == f"http://127.0.0.2:{port}/v1"
    gateway.close()
    status = gateway.exchange.status()
    names = ("heartbeat_s", "tasks", "episode_timeout_s")
    assert tuple(status[name] for name in names) == (7.0, "client", 50.0)


def test_a_port_that_is_taken_is_an_error_that_names_its_key(config_of):
    first = make_exchange_gateway(config_of("ajet.serve.port=auto"), "key")
    port = first.listen().rsplit(":", 1)[1].removesuffix("/v1")
    second = make_exchange_gateway(config_of(f"ajet.serve.port={port}"), "key")
    with pytest.raises(ConfigError, match=r"set ajet\.serve\.port to auto"):
        second.listen()
    first.close()


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("trinity.mode=bench", "trinity.mode: bench: it trains on no episode: set both"),
        ("trinity.mode=serve", "trinity.mode: serve: it trains on no episode: set both"),
        ("trinity.partial_rollout=recompute", "trinity.partial_rollout: recompute: episodes that"),
    ],
)
def test_settings_that_lose_a_clients_episode_on_trinity_are_refused(config_of, override, reason):
    for mode in ("both", "colocate", "train", "explore"):
        check_can_serve(config_of("ajet.backbone=trinity", f"trinity.mode={mode}"))
    check_can_serve(config_of("ajet.backbone=verl", override))  # which does not read it
    with pytest.raises(ConfigError, match=f"ajet serve: {reason}"):
        check_can_serve(config_of("ajet.backbone=trinity", override))


@pytest.mark.parametrize("backbone", BACKBONES)
def test_another_command_does_not_begin_a_run_whose_episodes_clients_run(config_of, backbone):
    config = config_of("ajet.rollout.user_workflow=client_owned", f"ajet.backbone={backbone}")
    with pytest.raises(ConfigError, match="start the run with `ajet serve --conf …`"):
        fit(config)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("ajet.kind=supervised", "ajet.kind: supervised: rows have their replies"),
        ("ajet.trainer_common.algorithm.adv_estimator=remax", "adv_estimator: remax"),
        ("+ajet.stages.one.seed=1", "ajet.stages: serve one stage at a time"),
    ],
)
def test_settings_that_clients_cannot_run_are_refused(config_of, override, reason):
    with pytest.raises(ConfigError, match=f"ajet serve: .*{reason}"):
        check_can_serve(config_of(override))


def test_the_workflow_of_clients_needs_the_server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serve.yaml").write_text(YAML)
    override = "ajet.rollout.user_workflow=client_owned"
    said = CliRunner().invoke(app, ["debug", "--conf", "serve.yaml", override])
    assert said.exit_code == 1
    assert "start the run with `ajet serve --conf …`" in said.output
