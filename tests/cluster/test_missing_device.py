"""`ajet check` says that a named device is missing, without torch."""

import pytest

from ajet.cluster.machine import missing_device


@pytest.fixture
def devices(tmp_path):
    """The /dev of a machine with two GPUs of NVIDIA's."""
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    return tmp_path


def missing(device, devices, environ=None, platform="linux", torch_version="2.9.0"):
    return missing_device(device, environ or {}, devices, platform, torch_version)


def test_a_gpu_that_is_not_there_is_named_with_those_that_are(devices):
    assert missing("cuda:1", devices) is None
    assert missing("cuda:2", devices).startswith(
        "cuda:2 is not on this machine: there are cuda:0 to"
    )
    one = {"CUDA_VISIBLE_DEVICES": "1"}
    assert missing("cuda", devices, one) is None
    assert "cuda:0 to cuda:0" in missing("cuda:1", devices, one)


def test_a_machine_without_gpus_has_no_cuda(tmp_path):
    assert "there is no GPU" in missing("cuda", tmp_path)
    assert missing("auto", tmp_path) is None and missing("cpu", tmp_path) is None


@pytest.mark.parametrize("name", ["dxg", "kfd", "nvgpu"])
def test_gpus_that_are_other_files_are_not_denied(tmp_path, name):
    (tmp_path / name).touch()
    assert missing("cuda:3", tmp_path) is None


def test_mps_is_on_macs_alone(devices):
    assert missing("mps", devices) == "mps is a Mac's GPU, and this is not a Mac"
    assert missing("mps", devices, platform="darwin") is None
    assert "Macs have none" in missing("cuda", devices, platform="darwin")


def test_a_torch_for_cpus_sees_no_gpu(devices):
    assert "2.9.0+cpu, is built without CUDA" in missing("cuda", devices, torch_version="2.9.0+cpu")
