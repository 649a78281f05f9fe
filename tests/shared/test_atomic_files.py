"""Atomic and durable file writes, and locks on folders."""

import errno
import fcntl
import os
import re
import stat

import pytest

from epochmeter.shared.atomic_files import (
    append_to,
    lock_folder,
    read_json,
    try_lock_folder,
    write_atomically,
    write_json,
)


def test_readers_see_the_old_file_until_the_new_one_is_complete(tmp_path):
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


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_error_names_the_file_that_was_asked_for(tmp_path, kind):
    path = tmp_path / "report.csv"
    if kind == "folder":
        path.mkdir()
    else:
        path = path / "job.json"
    with pytest.raises(OSError, match=re.escape(f": '{path}'") + r"\Z"):
        write_json(path, {})


def test_content_and_name_are_on_disk_before_a_file_is_replaced(tmp_path, monkeypatch):
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
    write_atomically(tmp_path / "other", lambda file: file.write("third"), durably=False)
    assert (calls, (tmp_path / "other").read_text()) == ([("replace", "other")], "third")
    calls.clear()
    for content in (b"abc", b"de"):
        with append_to(tmp_path / "rows") as file:
            file.write(content)
    assert calls == [("fsync", "rows", 3), folder, ("fsync", "rows", 5)]


def test_links_are_replaced_and_a_file_of_an_ended_process_is_no_obstacle(tmp_path):
    (private := tmp_path / "private").write_text("private")
    (tmp_path / f".job.json.{os.getpid()}").symlink_to(private)
    (path := tmp_path / "job.json").symlink_to(private)
    write_json(path, 1, mode=0o600)
    assert (read_json(path), path.is_symlink(), stat.S_IMODE(path.stat().st_mode)) == (1, False, 0o600)
    (tmp_path / f".job.json.{os.getpid()}").write_text("partial")
    write_json(path, 2)
    assert (read_json(path), private.read_text()) == (2, "private")
    assert {entry.name for entry in tmp_path.iterdir()} == {"job.json", "private"}


@pytest.mark.parametrize("refuses", ["nothing", "folders", "all"])
def test_folder_lock_excludes_other_processes(tmp_path, monkeypatch, refuses):
    def flock(descriptor, how, real=fcntl.flock):
        """NFS only locks files that are open for writing."""
        if refuses == "all" or (refuses == "folders" and stat.S_ISDIR(os.fstat(descriptor).st_mode)):
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    own = lock_folder(tmp_path)
    assert (try_lock_folder(tmp_path) is None) is (refuses != "all")
    os.close(own)
    assert try_lock_folder(tmp_path) is not None
    assert [path.name for path in tmp_path.iterdir()] == ([] if refuses == "nothing" else [".lock"])
