import os
from pathlib import Path

import pytest

from trainmeter.machine.disk import disk_of


def test_a_folder_lies_on_a_whole_disk_not_on_a_partition(tmp_path):
    try:
        disk = disk_of(tmp_path)
    except ValueError as error:
        assert os.major(os.stat(tmp_path).st_dev) == 0, "a disk's number is never 0"
        pytest.skip(str(error))
    assert disk in os.listdir("/sys/block")


def test_what_lies_on_no_disk_says_on_what():
    with pytest.raises(ValueError, match=r"/proc lies on proc, and on no one disk of this machine\."):
        disk_of(Path("/proc"))
