"""Which GPUs a process sees, from the driver's list and from what narrows it."""

import stat

import pytest

from shared.gpus import Gpu, least_used, narrowed, parse_listing, visible_gpus

LISTING = """GPU-aaaa-1, 3, 81559
GPU-aabb-2, 40000, 81559
GPU-bbbb-3, [N/A], [N/A]
Unable to determine the device handle for GPU 0000:07:00.0
"""


def test_the_drivers_list_is_read_and_a_gpu_somebody_works_on_is_known():
    gpus = parse_listing(LISTING)
    assert [gpu.uuid for gpu in gpus] == ["GPU-aaaa-1", "GPU-aabb-2", "GPU-bbbb-3"]
    assert [gpu.busy for gpu in gpus] == [False, True, False]


@pytest.mark.parametrize(
    ("visible", "left"),
    [
        (None, ["GPU-aaaa-1", "GPU-aabb-2", "GPU-bbbb-3"]),
        ("2,0", ["GPU-bbbb-3", "GPU-aaaa-1"]),
        ("GPU-bbbb-3", ["GPU-bbbb-3"]),
        ("GPU-b, 0", ["GPU-bbbb-3", "GPU-aaaa-1"]),
        ("GPU-aa", []),  # two begin so
        ("0,9,1", ["GPU-aaaa-1"]),  # CUDA stops at the first it does not know
        ("MIG-c", ["MIG-c"]),
        ("-1", []),
        ("", []),
    ],
)
def test_what_is_visible_already_narrows_the_choice(visible, left):
    assert [gpu.uuid for gpu in narrowed(parse_listing(LISTING), visible)] == left


@pytest.mark.parametrize(
    ("used", "taken"),
    [
        ([0.0, 0.05, 0.01, 0.0], ["3"]),  # idle ones are alike: the last, where no lease is taken yet
        ([0.0, 0.05, 0.6, 0.9], ["1"]),
        ([0.9, 0.5, 0.6, 0.9], ["1"]),
        ([0.0, 0.5, 0.6, 0.0], ["3", "0"]),
        ([0.9, 0.5, 0.6, 0.0], ["3", "1"]),
    ],
)
def test_who_has_no_lease_takes_what_is_used_least(used, taken):
    gpus = [Gpu(str(i), used=share) for i, share in enumerate(used)]
    assert [gpu.uuid for gpu in least_used(gpus, len(taken))] == taken


def test_named_devices_stand_in_for_the_drivers():
    assert visible_gpus({"HEADRACE_GPUS": "GPU-a, GPU-b,", "CUDA_VISIBLE_DEVICES": "1"}) == [Gpu("GPU-b")]


def test_a_missing_driver_shows_no_gpu_and_a_failing_one_is_not_mistaken_for_it(tmp_path, monkeypatch):
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 'GPU-a, 1, 2'\nexit 9\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HEADRACE_GPUS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == []  # no driver is loaded
    command.write_text("#!/bin/sh\necho 'GPU-a, 1, 2'\nexit 255\n")
    assert visible_gpus() is None  # nobody knows
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []
    command.write_text("#!/bin/sh\necho 'GPU-a, 0, 81559'\n")
    assert visible_gpus() == [Gpu("GPU-a", total=81559 * 2**20)]
