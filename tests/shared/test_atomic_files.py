"""Files that are there whole or not at all, and folders that one process at a time has."""

import errno
import fcntl
import json
import os
import stat

import pytest

from epochmeter.shared.atomic_files import lock_folder, read_json, write_json


def test_json_is_written_atomically_without_leftovers(tmp_path):
    write_json(tmp_path / "job.json", {"über": [1, 2.5, None]})
    assert read_json(tmp_path / "job.json") == {"über": [1, 2.5, None]}
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


def test_failed_write_keeps_the_old_file(tmp_path):
    write_json(tmp_path / "job.json", {"batch": 16})
    with pytest.raises(TypeError):
        write_json(tmp_path / "job.json", {"batch": 32, "model": object()})
    assert read_json(tmp_path / "job.json") == {"batch": 16}
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


def test_reader_never_sees_a_partial_file(tmp_path, monkeypatch):
    write_json(tmp_path / "job.json", {"batch": 16})
    seen = []

    def dump(value, file, **how):
        file.write('{"batch": ')
        file.flush()
        seen.append(read_json(tmp_path / "job.json"))
        file.write("32}")

    monkeypatch.setattr(json, "dump", dump)
    write_json(tmp_path / "job.json", {"batch": 32})
    assert seen == [{"batch": 16}]
    assert read_json(tmp_path / "job.json") == {"batch": 32}


@pytest.mark.parametrize("refuses", ["nothing", "folders", "all"])
def test_folder_lock_excludes_other_processes(tmp_path, monkeypatch, refuses):
    def flock(descriptor, how, real=fcntl.flock):
        """As of NFS, which locks what was opened for writing."""
        if refuses == "all" or (refuses == "folders" and stat.S_ISDIR(os.fstat(descriptor).st_mode)):
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    mine = lock_folder(tmp_path)
    other = lock_folder(tmp_path, wait=False)
    assert (other is None) is (refuses != "all")
    os.close(mine)
    assert lock_folder(tmp_path, wait=False) is not None
    assert [path.name for path in tmp_path.iterdir()] == ([] if refuses == "nothing" else [".lock"])
