"""What ajet uses of vLLM and SGLang is there in every release that it supports.

releases.json says what each release lacks; `python -m tests.servers.releases` looks into wheels.
"""

import json
import zipfile

import pytest

from ajet.servers.environment import PACKAGES, version_numbers
from ajet.servers.sglang_replica import SESSIONS_SINCE
from tests.servers.releases import (
    CUT_RULE,
    MASK,
    MASK_ANSWER,
    NOT_NEEDED,
    PAGE,
    RECORD,
    SESSION,
    SESSION_RULE,
    Release,
    look,
    methods,
    page,
    read_record,
    uses,
    wheel_of,
)

RELEASES = [(package, version) for package, found in read_record().items() for version in found]
SGLANG = [version for package, version in RELEASES if package == "sglang"]
PACKAGE = {package.name: package for package in PACKAGES}


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_all_that_ajet_uses_has_been_looked_for(engine):
    recorded = json.loads(RECORD.read_text())["uses"][engine]
    assert uses(engine) == recorded, "run: python -m tests.servers.releases"


@pytest.mark.parametrize(("package", "version"), RELEASES)
def test_a_release_has_what_ajet_uses_of_it(package, version):
    assert set(read_record()[package][version]) <= NOT_NEEDED


@pytest.mark.parametrize("name", PACKAGE)
def test_the_supported_range_is_that_of_the_releases_that_were_looked_into(name):
    package = PACKAGE[name]
    engine = [v for p, v in RELEASES if PACKAGE[p].engine == package.engine]
    own = [v for p, v in RELEASES if p == name]
    assert min(map(version_numbers, engine)) == version_numbers(package.oldest)
    assert max(map(version_numbers, own)) == version_numbers(package.newest)


@pytest.mark.parametrize("version", SGLANG)
def test_sglang_gets_an_update_session_exactly_where_it_wants_one(version):
    lacks = set(read_record()["sglang"][version])
    is_older = version_numbers(version) < SESSIONS_SINCE
    assert (SESSION_RULE in lacks) == is_older
    assert lacks.isdisjoint(SESSION) != is_older


@pytest.mark.parametrize("version", SGLANG)
def test_sglang_with_a_sampling_mask_gives_its_log_probabilities(version):
    lacks = set(read_record()["sglang"][version])
    assert (MASK in lacks) == (MASK_ANSWER in lacks)


def test_the_newest_sglang_takes_as_many_top_k_as_ajet_says():
    assert CUT_RULE not in read_record()["sglang"][SGLANG[-1]]


def test_the_page_of_supported_versions_is_written_from_the_record():
    assert PAGE.read_text() == page(read_record()), "run: python -m tests.servers.releases"


@pytest.mark.parametrize(("package", "version"), RELEASES)
def test_the_record_is_that_of_the_wheel(package, version):
    wheel = wheel_of(package, version)
    if wheel is None:
        pytest.skip("its wheel is not here: python -m tests.servers.releases downloads it")
    assert look(package, version, wheel) == read_record()[package][version]


# --- how a wheel is read -------------------------------------------------------------------------

WORKER = """
class Worker:
    def get_model(self): ...
    def reload_weights(self, *args, **kwargs): ...
"""
RUNNER = """
class GPUModelRunner:
    def reload_weights(self, weights_iterator=None, weights_path=None): ...
"""
SERVER = """
@app.post("/begin")
async def begin(obj: Annotated[BeginReq, Body()], request: Request): ...

@app.api_route("/flush", methods=["GET", "POST"])
async def flush(raw: Request):
    return (await raw.json()).get("tags")

async def abort(mode: str): ...
router.add_api_route("/abort", abort, methods=["POST"])
"""
CLASSES = """
class BaseReq:
    rid: str

class BeginReq(BaseReq, kw_only=True):
    sampling_params: dict

class SamplingParams:
    def __init__(self, top_k=-1): ...
"""
ARGUMENTS = """
parser.add_argument("--tp-size", "--tensor-parallel-size")
class ServerArgs:
    random_seed: int = 0
    sampling_mask_max_tokens: A[int, "help"] = 64
    dtype: Literal["auto", "bfloat16"] = "auto"
"""


@pytest.fixture
def release(tmp_path):
    def of(engine, files):
        with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
            for name, text in files.items():
                wheel.writestr(name, text)
        return Release(engine, tmp_path / "a.whl")

    return of


@pytest.mark.parametrize(
    ("use", "has"),
    [
        ("POST /begin", True),
        ("GET /begin", False),
        ("POST /begin: rid", True),  # of the base class
        ("POST /begin: other", False),
        ("POST /begin: sampling_params.top_k", True),
        ("POST /begin: sampling_params.min_k", False),
        ("GET /flush", True),
        ("POST /flush: tags", True),  # read from the body
        ("POST /abort: mode", True),
        ("--tp-size", True),
        ("--random-seed", True),  # a field
        ("--seed", False),
        ("--dtype bfloat16", True),
        ("--dtype float32", False),
        (CUT_RULE, False),  # its limit is another
    ],
)
def test_the_features_of_a_server_release_are_read_from_its_source(release, use, has):
    sglang = release(
        "sglang",
        {
            "sglang/srt/entrypoints/http_server.py": SERVER,
            "sglang/srt/managers/io_struct.py": CLASSES,
            "sglang/srt/server_args.py": ARGUMENTS,
        },
    )
    assert sglang.has(use) == has


@pytest.mark.parametrize(
    ("use", "has"),
    [
        ("worker: get_model()", True),
        ("worker: reload_weights(weights_iterator)", True),  # passed on to the runner's
        ("worker: reload_weights(tensors)", False),
        ("worker: unload()", False),
        ("worker: model_runner.reload_weights(weights_iterator)", False),  # past the worker's own
    ],
)
def test_a_method_of_the_worker_is_not_called_past_it(release, use, has):
    files = {
        "vllm/v1/worker/gpu_worker.py": WORKER,
        "vllm/v1/worker/gpu_model_runner.py": RUNNER,
    }
    assert release("vllm", files).has(use) == has


def test_calls_of_the_worker_are_read_in_the_extension():
    assert "worker: reload_weights(weights_iterator)" in methods()
