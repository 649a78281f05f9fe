"""Atomic and durable file writes, and locks on folders."""

import errno
import fcntl
import os
import stat

import pytest

from epochmeter.shared.atomic_files import append_to, lock_folder, read_json, write_atomically, write_json


def test_readers_see_the_old_file_until_the_new_one_is_complete_and_after_a_failed_write(tmp_path):
    path, seen = tmp_path / "job.json", []
    write_json(path, {"batch": 16})
    with pytest.raises(TypeError):
        write_json(path, {"batch": 32, "model": object()})
    assert list(tmp_path.iterdir()) == [path]

    def write(file):
        file.write('{"batch": ')
        file.flush()
        seen.append(read_json(path))
        file.write("32}")

    write_atomically(path, write)
    assert (seen, read_json(path)) == ([{"batch": 16}], {"batch": 32})


def test_content_and_a_new_name_are_on_disk_before_a_file_is_replaced_and_after_bytes_are_appended(
    tmp_path, monkeypatch
):
    calls = []  # those that make a write durable

    def fsync(descriptor, real=os.fsync):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        calls.append(("fsync", os.path.basename(path), None if os.path.isdir(path) else os.path.getsize(path)))
        real(descriptor)

    def replace(old, new, real=os.replace):
        calls.append(("replace", os.path.basename(new)))
        real(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    folder, partial = ("fsync", tmp_path.name, None), f".file.{os.getpid()}"
    for content in ("first", "second"):
        write_atomically(tmp_path / "file", lambda file, content=content: file.write(content))
    new, replaced = [("fsync", partial, 5), ("replace", "file")], [("fsync", partial, 6), ("replace", "file")]
    assert calls == [*new, folder, *replaced]
    calls.clear()
    for content in (b"abc", b"de"):
        with append_to(tmp_path / "rows") as file:
            file.write(content)
    assert calls == [("fsync", "rows", 3), folder, ("fsync", "rows", 5)]


@pytest.mark.parametrize("refuses", ["nothing", "folders", "all"])
def test_folder_lock_excludes_other_processes(tmp_path, monkeypatch, refuses):
    def flock(descriptor, how, real=fcntl.flock):
        """NFS only locks files that are open for writing."""
        if refuses == "all" or (refuses == "folders" and stat.S_ISDIR(os.fstat(descriptor).st_mode)):
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    own = lock_folder(tmp_path)
    assert (lock_folder(tmp_path, wait=False) is None) is (refuses != "all")
    os.close(own)
    assert lock_folder(tmp_path, wait=False) is not None
    assert [path.name for path in tmp_path.iterdir()] == ([] if refuses == "nothing" else [".lock"])
