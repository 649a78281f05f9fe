"""Control of this machine's page cache, checked by the read counters of its disk."""

import os

import pytest

from epochmeter.machine.disk import disk_of, read_counters
from epochmeter.machine.page_cache import Residency, iter_files, prepare_cache, read_into_cache

pytestmark = [pytest.mark.system, pytest.mark.alone]

COUNT, SIZE = 300, 110_000


@pytest.fixture
def dataset(tmp_path):
    """Files like ImageNet's, on a disk that counts its reads."""
    if not disk_of(tmp_path).devices:
        pytest.skip(f"the temporary folder is not on a disk: {disk_of(tmp_path).reason}")
    place = tmp_path / "train/class"
    place.mkdir(parents=True)
    for index in range(COUNT):
        (place / f"{index:03}.jpg").write_bytes(os.urandom(SIZE))
    return tmp_path


def allocated(folder):
    return sum(os.stat(path).st_blocks * 512 for path in iter_files(folder))


def read_by_device(folder):
    """Return the bytes that the disk reads while all files are read."""
    disk = disk_of(folder)
    before = read_counters(disk)
    read_into_cache(iter_files(folder))
    return read_counters(disk).bytes - before.bytes


@pytest.mark.parametrize(
    ("cache", "residency", "read"), [("cold", (0, 0.02), (0.98, 1.2)), ("warm", (0.99, 1), (0, 0.02))]
)
def test_every_byte_comes_from_the_disk_with_a_cold_cache_and_hardly_one_with_a_warm_cache(
    dataset, cache, residency, read
):
    fractions_read = []
    for _ in range(5):  # until no other process reads much from the same disk
        prepare_cache(cache, dataset)
        assert residency[0] <= Residency(dataset).fraction() <= residency[1]
        fractions_read.append(read_by_device(dataset) / allocated(dataset))
        if fractions_read[-1] < read[1]:
            break
    assert min(fractions_read) >= read[0]
    assert fractions_read[-1] < read[1], f"the disk was never idle: {fractions_read}"
