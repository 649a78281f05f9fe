import pytest

from trainmeter.power.limit import found

PC = {"board": None, "gpu": None}
RAPL = "sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw"


@pytest.fixture
def tree(tmp_path):
    """tree(path) -> the root of a machine that has this file."""

    def with_file(path):
        file = tmp_path / path
        file.parent.mkdir(parents=True)
        file.touch()
        return tmp_path

    return with_file


def test_where_nothing_can_be_set_there_is_no_limit(tmp_path):
    assert found(False, PC, tmp_path) is None


@pytest.mark.parametrize(("vendor", "by"), [("nvidia", "NVML"), ("amd", "amdsmi")])
def test_a_gpu_is_limited_through_its_vendors_library(tmp_path, vendor, by):
    assert found(True, {**PC, "gpu": vendor}, tmp_path) == by


def test_a_cpu_is_limited_by_its_powercap(tree):
    assert found(False, PC, tree(RAPL)) == "RAPL"


def test_training_on_the_cpu_asks_nothing_of_the_gpu_beside_it(tmp_path, tree):
    pc_with_gpu = {**PC, "gpu": "nvidia"}
    assert found(False, pc_with_gpu, tmp_path) is None
    assert found(False, pc_with_gpu, tree(RAPL)) == "RAPL"


def test_a_job_for_a_gpu_trains_on_the_cpu_where_there_is_none(tree):
    assert found(True, PC, tree(RAPL)) == "RAPL"


def test_a_powercap_that_counts_but_has_no_limit_cannot_be_set(tree):
    assert found(False, PC, tree("sys/class/powercap/intel-rapl:0/energy_uj")) is None


@pytest.mark.parametrize("gpu", [None, "nvidia"])
@pytest.mark.parametrize("trains_on_gpu", [True, False])
def test_a_jetson_is_limited_by_its_power_modes_whatever_else_it_has(tree, trains_on_gpu, gpu):
    assert found(trains_on_gpu, {"board": "nvidia,p3737", "gpu": gpu}, tree("etc/nvpmodel.conf")) == "nvpmodel"
