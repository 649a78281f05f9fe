"""Simulated machines: files below a temporary root, and a stub of NVML compiled with gcc."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import pytest
from controls import Board

from epochmeter.machine import nvml as nvml_client
from epochmeter.machine.amd import load_amdsmi
from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.knobs import jetson
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.power.meter import EnergyMeter
from epochmeter.power.power_series import NO_POWER_SAMPLES, PowerSamples, Sampling
from epochmeter.power.uncertainty import Response

STUBS = Path(__file__).parent


class ScriptedPowers:
    """Sampled power with scripted statistics, joules and samples."""

    def __init__(self, sampling: Sampling, samples: PowerSamples = NO_POWER_SAMPLES, **averaging_s: float) -> None:
        self.domains = {name: Domain("sampled", 0.01, name, response=Response(s)) for name, s in averaging_s.items()}
        self._samples = samples
        self.sampling = lambda opened_ns, closed_ns, borders_s=None: sampling

    def read(self, *, fresh: bool = True) -> dict[str, float]:
        return dict.fromkeys(self.domains, 100.0)

    def drain(self, before_ns: int) -> PowerSamples:
        samples, self._samples = self._samples, NO_POWER_SAMPLES
        return samples

    def close(self) -> bool:
        return True


def counters(source: str = "counter", period_s: float = 0.1, **read: Callable[[], float]) -> EnergyMeter:
    """A meter of counters, given the functions that read them."""
    parts = {name: Instrument(Domain(source, period_s, name), at) for name, at in read.items()}
    return EnergyMeter(counters=parts, total=list(parts), covers="all")


@pytest.fixture(scope="session")
def nvml_stub(tmp_path_factory) -> Path:
    """The folder of a stub libnvidia-ml.so.1 with two GPUs, for LD_LIBRARY_PATH."""
    return compiled(tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1", STUBS.joinpath("nvml_stub.c").read_text())


@pytest.fixture(scope="session")
def amd_smi_stub(tmp_path_factory) -> Path:
    """The folder of a stub libamd_smi.so with every symbol that the real client binds."""
    if not (client := find_spec("amdsmi")):
        pytest.skip("amdsmi is not installed")
    wrapper = Path(client.submodule_search_locations[0], "amdsmi_wrapper.py").read_text()
    bound = sorted({*re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", wrapper)})
    own = STUBS.joinpath("amd_smi_stub.c").read_text()
    rest = "".join(f"int {name}(void) {{ return NOT_SUPPORTED; }}\n" for name in bound if f" {name}(" not in own)
    return compiled(tmp_path_factory.mktemp("amd_smi") / "libamd_smi.so", own + rest)


@pytest.fixture
def amd_smi(amd_smi_stub, tmp_path, monkeypatch) -> Iterator[None]:
    """The amdsmi stub below the real client library; each test has a copy of it, with counters of its own."""

    def forget() -> None:
        load_amdsmi.cache_clear()
        for name in [name for name in sys.modules if name.startswith("amdsmi")]:
            del sys.modules[name]

    monkeypatch.setenv("ROCM_HOME", str(shutil.copytree(amd_smi_stub, tmp_path / "rocm/lib").parent))
    forget()
    yield
    forget()


def compiled(library: Path, source: str) -> Path:
    """Compile a library; returns its folder."""
    if not shutil.which("gcc"):
        pytest.skip("the stub needs gcc")
    subprocess.run(["gcc", "-shared", "-fPIC", "-xc", "-o", library, "-"], input=source, text=True, check=True)
    return library.parent


@pytest.fixture
def open_folder():
    """A folder that every user may enter, unlike pytest's own.

    It is in memory, if programs may run there: the journal of settings is flushed to disk at each change.
    """
    memory = "/dev/shm"
    usable = os.access(memory, os.W_OK) and not os.statvfs(memory).f_flag & os.ST_NOEXEC
    with tempfile.TemporaryDirectory(dir=memory if usable else None) as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.fixture
def nvml(nvml_stub, open_folder, monkeypatch):
    """The NVML stub below the real client library; the GPUs' power limit is 250 W."""
    pynvml = pytest.importorskip("pynvml")
    library = str(nvml_stub / "libnvidia-ml.so.1")
    monkeypatch.setattr(nvml_client, "LIBRARY", library)
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(library))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(nvml_client, "list_gpus", nvml_client.list_gpus.__wrapped__)  # those of the stub, not cached
    monkeypatch.setenv("STUB_LIMIT", str(open_folder / "limit"))
    monkeypatch.setenv("STUB", "")


@pytest.fixture
def other_process() -> Iterator[subprocess.Popen]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.fixture
def journal(tmp_path) -> RestoreJournal:
    return RestoreJournal(str(tmp_path / "state"), root=str(tmp_path), command="train.py")


@pytest.fixture
def board(tmp_path, monkeypatch) -> Board:
    """A machine with its programs on the PATH."""
    board = Board(tmp_path)
    monkeypatch.setenv("PATH", board.on_path())
    return board


@pytest.fixture
def no_jtop(monkeypatch):
    """An ordinary user on a machine without jtop's service."""
    refuse = Mock(side_effect=RuntimeError("the jtop service is not active."))
    monkeypatch.setattr(jetson, "connect_client", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
