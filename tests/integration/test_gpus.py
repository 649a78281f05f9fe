"""Runs that measure and limit a GPU: NVML is a stub, its Python client and zeus are real."""

import os

import pytest
from accounts import assert_account_has_the_energy_of
from power.conftest import nvml_stub  # noqa: F401 (a fixture)
from project import put

GPU = "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-aaaa\nDevice Minor: \t 0\n"


@pytest.fixture
def on_a_gpu(project, tmp_path, nvml_stub):  # noqa: F811
    """on_a_gpu(overrides) -> a run on a machine with one GPU, which uses 200 W."""
    pytest.importorskip("zeus", reason="no zeus in this environment, as on a board")
    put(tmp_path, {"proc/driver/nvidia/gpus/0000:01:00.0/information": GPU})
    machine = {"machine.root": tmp_path, "machine.state_dir": tmp_path / "state", "device.accelerator": "auto"}
    environment = {"LD_LIBRARY_PATH": str(nvml_stub), "STUB_LIMIT": str(tmp_path / "limit")}

    def run(processes="", **overrides):
        keys = {"device": "auto", "epochs": 1, "batch": 3000, "meter.idle_s": 1.1, **overrides}
        arguments = project.stubbed(**machine, **keys)
        return project.run("train", *arguments, check=True, STUB="ticks", STUB_PROCESSES=processes, **environment)

    return run


@pytest.mark.system
def test_gpu_energy_is_its_counter_and_the_power_limit_is_restored(on_a_gpu, project, tmp_path):
    on_a_gpu(power_limit=150)
    run, metrics = project.record().run(), project.record().windows()[0]["metrics"]
    energy = {"source": "counter", "covers": "GPUs used (whole boards)", "domains": ["gpu0"], "reason": None}
    assert run["energy"] == {**energy, "limit_w": 300.0}
    assert run["power_limit_applied"] == "150 W"
    assert (tmp_path / "limit").read_text().strip() == "250000"
    seconds = metrics["epoch/energy_j"] / metrics["epoch/power_mean_w"]
    assert metrics["epoch/energy_j"] == pytest.approx(200 * seconds, abs=2 * 20), "two ticks of 20 J"
    assert metrics["epoch/power_samples"] > 10
    assert abs(metrics["epoch/energy_j"] - 200 * seconds) <= metrics["epoch/energy_uncertainty_j"] + 1
    assert metrics["epoch/gpu_utilization"] > 0
    assert "also computes" not in run["flags"]["gpu_shared"], "only busy before training began, as it always is"
    total = project.record().summary()["metrics"]
    borders = (window["energy"] for window in project.record().windows())
    seconds = sum(border["closed_ns"] - border["opened_ns"] for border in borders)
    assert total["total/energy_j"] == pytest.approx(200 * seconds * 1e-9, abs=total["total/energy_uncertainty_j"])
    assert_account_has_the_energy_of(200, project.record())
    assert total["total/edp_js"] == total["total/energy_j"] * total["total/e2e_s"]


@pytest.mark.system
def test_energy_of_a_gpu_on_which_another_process_computes_is_absent_with_the_reason(on_a_gpu, project):
    on_a_gpu(processes=f"{os.getpid()}:3072")  # a process that is not the run's
    record = project.record()
    (line,) = [window for window in record.windows() if window["window"] == "epoch"]
    shared = "also computes on gpu0: 3.0 GiB"
    assert shared in record.run()["flags"]["gpu_shared"]
    assert [note for note in record.summary()["notes"] if note.startswith("epoch ") and shared in note]
    assert "epoch/energy_j" not in line["metrics"]
    assert (line["energy_valid"], [reason["code"] for reason in line["energy_reasons"]]) == (False, ["shared_gpu"])
