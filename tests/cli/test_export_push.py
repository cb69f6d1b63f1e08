"""`ajet export --push` with the Hub's own client, against a stand-in of the Hub on loopback."""

import huggingface_hub
import pytest
import yaml
from typer.testing import CliRunner

from ajet.cli.launcher import app
from tests.hub_server import TOKEN, HubServer

RUN = "toy/launcher_record/toy"


@pytest.fixture
def hub(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    constants = huggingface_hub.constants
    with HubServer() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # xet has a protocol of its own
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


@pytest.fixture
def push(folder):
    def call(*args):  # the run's folder is absolute, as the command changes to that of the project
        return CliRunner().invoke(app, ["export", str(folder / RUN), "--push", *args])

    return call


def refusal(result):
    assert result.exit_code == 1, result.output
    _, _, line = result.stderr.rpartition("error: ")  # after bars of progress
    assert "Traceback" not in result.stderr and line.endswith(" [AJ-NET-009]\n")
    return line.removesuffix(" [AJ-NET-009]\n")


def test_a_model_is_pushed_privately_as_one_commit_with_its_card(hub, push, folder):
    result = push("ada/solver")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"pushed: {hub.url}/ada/solver\n"
    repository = hub.repositories["ada/solver"]
    assert (repository.visibility, repository.messages) == ("private", ["step_000001 of toy"])
    files = repository.branches["main"]
    learnt = folder / RUN / "checkpoints" / "step_000001" / "model.safetensors"
    from safetensors.torch import load, load_file

    pushed, expected = load(files["model.safetensors"]), load_file(learnt)
    assert all(pushed[name].equal(expected[name]) for name in expected)
    assert {"config.json", "tokenizer.json", "README.md"} <= files.keys()
    head = yaml.safe_load(files["README.md"].decode().split("---\n")[1])
    assert head["library_name"] == "transformers" and "ajet" in head["tags"]
    assert str(folder) not in files["README.md"].decode()


def test_an_existing_repository_is_refused_but_for_a_revision(hub, push):
    assert push("ada/solver", "--public").exit_code == 0
    assert hub.repositories["ada/solver"].visibility == "public"
    taken = "exists already; --revision main adds a commit to it, --revision NAME a branch"
    assert refusal(push("ada/solver")) == f"--push ada/solver: {taken}"
    for revision in ("v2", "v2", "main"):
        assert push("ada/solver", "--revision", revision).exit_code == 0
    repository = hub.repositories["ada/solver"]
    assert len(repository.messages) == 4 and {*repository.branches} == {"main", "v2"}
    assert "README.md" in repository.branches["v2"]


def test_without_a_login_nothing_is_computed(hub, push, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    line = refusal(push("ada/solver"))
    assert line == "--push ada/solver: not logged in to the Hub: hf auth login"
    assert hub.requests == []


def test_a_token_that_the_hub_does_not_know_is_one_line(hub, push, monkeypatch):
    other = "hf_" + "b" * 30
    monkeypatch.setenv("HF_TOKEN", other)
    line = refusal(push("ada/solver"))
    assert line == "--push ada/solver: the login is not valid (any more): hf auth login (HTTP 401)"
    assert other not in line


def test_no_right_to_write_is_one_line_and_the_folder_is_there(hub, push, tmp_path):
    result = push("bob/solver", "--out", str(tmp_path / "out"))
    line = refusal(result)
    assert line.startswith("--push bob/solver: the account may not write there: name a repository")
    assert (tmp_path / "out" / "README.md").is_file()


def test_a_name_that_no_repository_can_have_is_one_line(hub, push):
    assert refusal(push("ada/so lver")).startswith("--push ada/so lver: ")


def test_a_file_that_is_not_taken_is_one_line(hub, push):
    hub.takes_objects = False
    line = refusal(push("ada/solver"))
    assert line == "--push ada/solver: Error while uploading 'model.safetensors' to the Hub."


def test_a_hub_that_does_not_answer_is_one_line(hub, push, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "the Hub does not answer" in refusal(push("ada/solver"))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "where to? give --out DIR, --push OWNER/NAME or --gguf FILE.gguf"),
        (["--out", "x", "--revision", "v1"], "--revision and --public are about --push"),
        (["--gguf", "x.gguf", "--adapter"], "--gguf writes the whole model"),
        (["--gguf", "x.bin"], "ends in .gguf"),
    ],
)
def test_options_that_do_not_fit_are_refused(folder, monkeypatch, args, said):
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(app, ["export", RUN, *args])
    assert result.exit_code == 1 and said in result.stderr
