import pytest

from trainmeter.power.limit import found

PC = {"board": None, "gpu": None}


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
    assert found(PC, tmp_path) is None


@pytest.mark.parametrize(("vendor", "by"), [("nvidia", "NVML"), ("amd", "amdsmi")])
def test_a_gpu_is_limited_through_its_vendors_library(tmp_path, vendor, by):
    assert found({**PC, "gpu": vendor}, tmp_path) == by


def test_a_cpu_is_limited_by_its_powercap(tree):
    assert found(PC, tree("sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw")) == "RAPL"


def test_a_powercap_that_counts_but_has_no_limit_cannot_be_set(tree):
    assert found(PC, tree("sys/class/powercap/intel-rapl:0/energy_uj")) is None


@pytest.mark.parametrize("gpu", [None, "nvidia"])
def test_a_jetson_is_limited_by_its_power_modes_whatever_else_it_has(tree, gpu):
    assert found({"board": "nvidia,p3737", "gpu": gpu}, tree("etc/nvpmodel.conf")) == "nvpmodel"
