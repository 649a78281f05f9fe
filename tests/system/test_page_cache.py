"""Control of this machine's page cache, checked by the read counters of its disk."""

import os

import pytest

from epochmeter.machine.disk import disk_of, read_counters
from epochmeter.machine.page_cache import Residency, iter_files, prepare_cache, read_into_cache

pytestmark = [pytest.mark.system, pytest.mark.alone]

COUNT, SIZE = 300, 110_000  # files like ImageNet's


@pytest.mark.parametrize(
    ("cache", "residency", "read"), [("cold", (0, 0.02), (0.98, 1.2)), ("warm", (0.99, 1), (0, 0.02))]
)
def test_every_byte_comes_from_the_disk_with_a_cold_and_hardly_one_with_a_warm_cache(tmp_path, cache, residency, read):
    disk = disk_of(tmp_path)
    if not disk.devices:
        pytest.skip(f"the temporary folder is not on a disk: {disk.reason}")
    for index in range(COUNT):
        (tmp_path / f"{index:03}.jpg").write_bytes(os.urandom(SIZE))
    fractions_read = []
    for _ in range(5):  # until no other process reads much from the same disk
        prepare_cache(cache, tmp_path)
        assert residency[0] <= Residency(tmp_path).fraction() <= residency[1]
        before = read_counters(disk)
        read_into_cache(iter_files(tmp_path))
        allocated = sum(os.stat(path).st_blocks * 512 for path in iter_files(tmp_path))
        fractions_read.append((read_counters(disk).bytes - before.bytes) / allocated)
        if fractions_read[-1] < read[1]:
            break
    assert min(fractions_read) >= read[0]
    assert fractions_read[-1] < read[1], f"the disk was never idle: {fractions_read}"
