"""Each machine is recorded and replayed: the doctor prints the same, the meter measures the same, nobody is named."""

import gzip
import os
import re
import time
from contextlib import closing, contextmanager

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from recordings import MACHINES, NO_AMDSMI, SECRETS, counting, plant
from timed import mean_w, next_renewal

from epochmeter.config.entries import Examination
from epochmeter.config.installation import ROOT
from epochmeter.config.versions import DEFAULTS
from epochmeter.machine import amd, host, nvml
from epochmeter.machine.gpus import find_gpus, meter_id, select_gpus
from epochmeter.machine.recorded.recorder import record_machine
from epochmeter.machine.recorded.root import root_folder, use_machine
from epochmeter.power.meter import open_meter
from epochmeter.run.capabilities import examine_machine

NOT_RECORDED_HERE = ("recording", "storage", "disk reads", "page cache", "trace")
"""Rows about the recording, and about this machine's own disks and torch."""
IN_SHORT = ("nano iio", "thor hwmon", "H100", "GB300", "Cray EX", "two Xeons")
"""Machines that `make test` replays; the others take as long again."""
WATTS = re.compile(r"^[\d.e+]+ W$")


@pytest.fixture(autouse=True)
def _own_drivers(monkeypatch):
    """Each test begins with no GPU chosen by the environment, and ends with this machine's drivers."""
    for variable in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    yield
    use_machine("/")


@pytest.fixture
def composed(tmp_path):
    with initialize_config_dir(str(ROOT / "conf"), **DEFAULTS):

        def compose_doctor(root, device):
            overrides = [f"machine.state_dir={tmp_path / 'state'}", f"machine.root={root}", f"device={device}"]
            return Examination.from_dict(OmegaConf.to_container(compose("doctor", overrides=overrides), resolve=True))

        yield compose_doctor


def examined(config, root):
    """The doctor's rows by quantity, without the powers, which are returned apart, and without the root's name."""
    rows = {row.quantity: row for row in examine_machine(config, host.device_of(str(root)))}
    kept = {name: row for name, row in rows.items() if name not in NOT_RECORDED_HERE}
    watts = {name: float(row.now.split()[0]) for name, row in kept.items() if row.now and WATTS.match(row.now)}
    texts = {
        name: [value.replace(str(root), "ROOT") if isinstance(value, str) else value for value in
               row._replace(now=None if name in watts else row.now)]
        for name, row in kept.items()
    }  # fmt: skip
    return texts, watts


def measured_w(config, root, seconds):
    """The mean power that the meter counts between two renewals of its counters, about some seconds apart."""
    facts = host.device_facts(str(root))
    names = [meter_id(gpu) for gpu in select_gpus(find_gpus(root_folder(root)), os.environ)] if facts["gpu"] else []
    with closing(open_meter(config.meter.to_dict(), gpus=names, root=root)) as meter:
        before = next_renewal(meter)
        time.sleep(seconds)
        return mean_w(meter, before, next_renewal(meter))[0]


@contextmanager
def as_own_drivers(machine):
    """The GPUs of a machine are this one's."""
    nvml.replace_client(machine.nvml())
    amd.replace_client(NO_AMDSMI)
    try:
        yield
    finally:
        nvml.replace_client(None)
        amd.replace_client(None)


@pytest.mark.timed
@pytest.mark.parametrize(
    "name", [name if name in IN_SHORT else pytest.param(name, marks=pytest.mark.system) for name in MACHINES]
)
def test_replayed_machine_is_the_recorded_one_and_nobody_is_named(tmp_path, composed, name):
    pytest.importorskip("pynvml")
    machine, root, archive = MACHINES[name], tmp_path / "machine", tmp_path / "board.tar.gz"
    seconds = 2.0 if machine.device == "cpu" else 1.0  # a counter of RAPL is renewed by a thread of this test
    root.mkdir()
    machine.write(root)
    plant(root)
    with counting(root), as_own_drivers(machine):
        live = composed(root, machine.device)
        here, here_w = examined(live, root)
        here_mean_w = measured_w(live, root, seconds)
        record_machine(archive, root, seconds, None, "this test has no load")
    content = gzip.decompress(archive.read_bytes()).decode(errors="replace")
    assert [secret for secret in SECRETS if secret.lower() in content.lower()] == []

    replayed = composed(archive, machine.device)
    there, there_w = examined(replayed, archive)
    assert there == here
    assert there_w == pytest.approx(here_w, rel=0.5)  # within half a second
    assert measured_w(replayed, archive, seconds) == pytest.approx(here_mean_w, rel=0.05)
    assert here_mean_w == pytest.approx(machine.watts, rel=0.05)
