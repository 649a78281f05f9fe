"""How cold is cold: this machine's own page cache, and the counters of the disk that its files lie on."""

import os
from pathlib import Path

import pytest

from epochmeter.machine.disk import disk_of, read_counters
from epochmeter.machine.page_cache import Residency, drop_caches, evict, iter_files, prepare_cache, read_into_cache
from epochmeter.run.data_source import FileSource

pytestmark = [pytest.mark.system, pytest.mark.alone]

COUNT, SIZE = 300, 110_000
ALIEN = 65534


@pytest.fixture
def dataset(tmp_path):
    """Files like ImageNet's, on a disk that counts its reads."""
    if not disk_of(tmp_path).devices:
        pytest.skip(f"the temporary folder lies on no disk: {disk_of(tmp_path).reason}")
    place = tmp_path / "train/class"
    place.mkdir(parents=True)
    for index in range(COUNT):
        (place / f"{index:03}.jpg").write_bytes(os.urandom(SIZE))
    return tmp_path


def allocated(folder):
    return sum(os.stat(path).st_blocks * 512 for path in iter_files(folder))


def read_by_device(folder):
    """What the disk reads while all files are."""
    disk = disk_of(folder)
    before = read_counters(disk)
    read_into_cache(iter_files(folder))
    return read_counters(disk).bytes - before.bytes


def test_cold_is_cold_and_every_byte_comes_from_the_disk(dataset):
    shares, told = [], []
    for _ in range(5):  # until nobody else reads much from the same disk meanwhile
        prepare_cache("cold", dataset)
        shares.append(Residency(dataset).fraction())
        told.append(read_by_device(dataset) / allocated(dataset))
        if told[-1] < 1.2:
            break
    assert max(shares) <= 0.02
    assert min(told) >= 0.98
    assert told[-1] < 1.2, f"the disk was never idle: {told}"


def test_warm_is_warm_and_hardly_a_byte_comes_from_the_disk(dataset):
    told = []
    for _ in range(5):
        prepare_cache("warm", dataset)
        assert Residency(dataset).fraction() >= 0.99
        told.append(read_by_device(dataset) / allocated(dataset))
        if told[-1] < 0.02:
            break
    assert min(told) < 0.02


def test_an_epochs_metrics_tell_the_same(dataset):
    source = FileSource(dataset, "cold", False, print)
    source.prepare(0)
    source.mark()
    read_into_cache(iter_files(dataset))
    source.mark()
    found = source.window("epoch", 2.0)
    assert found["read_bytes"] >= 0.98 * allocated(dataset)
    assert found["read_bytes_per_s"] == found["read_bytes"] / 2
    assert found["read_iops"] > 0
    assert found["page_cache_residency_before"] <= 0.02
    assert found["page_cache_residency_after"] >= 0.99


def as_another_user(act):
    """Whether `act` is true for a user whose the files are not, and who may but read them."""
    child = os.fork()
    if child == 0:
        os.setgid(ALIEN)
        os.setuid(ALIEN)
        os._exit(0 if act() else 1)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_who_may_only_read_the_files_evicts_them_and_is_not_told_how_cold_they_are(dataset, monkeypatch):
    for path in (dataset, *dataset.rglob("*")):
        path.chmod(0o755)
    monkeypatch.chdir(dataset)  # the folders above are pytest's own, closed to others
    here = Path(".")
    residency = Residency(here)
    assert residency.fraction() == 1
    assert as_another_user(lambda: not evict(iter_files(here)) and Residency(here).fraction() is None)
    assert residency.fraction() <= 0.02


@pytest.mark.skipif(not os.access("/proc/sys/vm/drop_caches", os.W_OK), reason="only root may drop the kernel's caches")
def test_the_kernel_drops_its_caches_where_it_may_be_asked(dataset):
    os.sync()
    residency = Residency(dataset)
    residency.fraction()
    drop_caches()
    assert residency.fraction() <= 0.02
