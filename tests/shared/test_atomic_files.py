"""Atomic and durable file writes, and locks on folders."""

import errno
import fcntl
import os
import stat

import pytest

from epochmeter.shared.atomic_files import append_to, lock_folder, read_json, write_atomically, write_json


def test_failed_write_keeps_the_old_file(tmp_path):
    write_json(tmp_path / "job.json", {"batch": 16})
    with pytest.raises(TypeError):
        write_json(tmp_path / "job.json", {"batch": 32, "model": object()})
    assert read_json(tmp_path / "job.json") == {"batch": 16}
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


def test_reader_never_sees_a_partial_file(tmp_path):
    write_json(tmp_path / "job.json", {"batch": 16})
    seen = []

    def write(file):
        file.write('{"batch": ')
        file.flush()
        seen.append(read_json(tmp_path / "job.json"))
        file.write("32}")

    write_atomically(tmp_path / "job.json", write)
    assert seen == [{"batch": 16}]
    assert read_json(tmp_path / "job.json") == {"batch": 32}


@pytest.fixture
def calls(monkeypatch):
    """The calls that make a write durable, in order: ("fsync", path, bytes) and ("replace", path)."""
    calls = []

    def fsync(descriptor, real=os.fsync):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        calls.append(("fsync", os.path.basename(path), None if os.path.isdir(path) else os.path.getsize(path)))
        real(descriptor)

    def replace(old, new, real=os.replace):
        calls.append(("replace", os.path.basename(new)))
        real(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    return calls


def test_content_is_on_disk_before_it_replaces_the_old_file(tmp_path, calls):
    for content in ("first", "second"):
        write_atomically(tmp_path / "file", lambda file, content=content: file.write(content))
    partial = f".file.{os.getpid()}"
    new, replaced = [("fsync", partial, 5), ("replace", "file")], [("fsync", partial, 6), ("replace", "file")]
    assert calls == [*new, ("fsync", tmp_path.name, None), *replaced]


def test_appended_bytes_and_a_new_name_are_on_disk_at_the_end(tmp_path, calls):
    for content in (b"abc", b"de"):
        with append_to(tmp_path / "file") as file:
            file.write(content)
    assert calls == [("fsync", "file", 3), ("fsync", tmp_path.name, None), ("fsync", "file", 5)]


@pytest.mark.parametrize("refuses", ["nothing", "folders", "all"])
def test_folder_lock_excludes_other_processes(tmp_path, monkeypatch, refuses):
    def flock(descriptor, how, real=fcntl.flock):
        """NFS only locks files that are open for writing."""
        if refuses == "all" or (refuses == "folders" and stat.S_ISDIR(os.fstat(descriptor).st_mode)):
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    own = lock_folder(tmp_path)
    other = lock_folder(tmp_path, wait=False)
    assert (other is None) is (refuses != "all")
    os.close(own)
    assert lock_folder(tmp_path, wait=False) is not None
    assert [path.name for path in tmp_path.iterdir()] == ([] if refuses == "nothing" else [".lock"])
