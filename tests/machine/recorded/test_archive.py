import gzip
import io
import json
import os
import random
import tarfile
from pathlib import Path

import pytest

from epochmeter.machine.recorded import archive
from epochmeter.machine.recorded.archive import read_document, unpack, write_archive
from epochmeter.machine.recorded.tree import Entry
from epochmeter.shared.problem import InputError, problem_of

ENTRIES = (
    Entry("sys/devices/chip/name", 0o444, b"ina3221\n", access="r"),
    Entry("sys/devices/chip/limit", 0o644, b"95\n", access="rw"),
    Entry("sys/devices/chip/energy_uj", 0o400, None, access=""),
    Entry("sys/class/hwmon/hwmon3", 0o777, target="../../devices/chip"),
    Entry("sys/class/net/eth0/device", 0o755, is_folder=True),
)


def manifest(entries=5, **changes):
    fields = {"format": archive.FORMAT, "version": archive.VERSION, "entries": entries, "duration_s": 1.0, **changes}
    return {archive.MANIFEST: json.dumps(fields).encode()}


@pytest.fixture
def folder(tmp_path):
    (inside := tmp_path / "outer/inside").mkdir(parents=True)
    return inside


@pytest.fixture
def made(tmp_path):
    """made(*members, documents) -> an archive with these members, as a hostile sender may write it."""

    def make(*members, documents=None):
        path = tmp_path / "board.tar.gz"
        documents = manifest(len(members)) if documents is None else documents
        with tarfile.open(path, "w:gz") as opened:
            for name, content in documents.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                opened.addfile(info, io.BytesIO(content))
            for info, content in members:
                info.size = len(content)
                opened.addfile(info, io.BytesIO(content))
        return path

    return make


def member(name, kind=tarfile.REGTYPE, target="", content=b""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, content


def refused(path, folder):
    """The message of a refused archive, which has left nothing outside of its folder."""
    before = sorted(folder.parents[1].rglob("*"))
    with pytest.raises(InputError) as error:
        unpack(path, folder)
    outside = [each for each in folder.parents[1].rglob("*") if not each.is_relative_to(folder)]
    assert sorted(outside) == [each for each in before if not each.is_relative_to(folder)]
    problem = problem_of(error.value)
    assert problem.hint
    return problem.message


def test_files_have_their_types_links_and_the_permissions_of_who_recorded_them(tmp_path, folder):
    path = tmp_path / "board.tar.gz"
    write_archive(path, manifest(), ENTRIES)
    documents = unpack(path, folder)
    assert read_document(path, documents, archive.MANIFEST)["entries"] == 5
    chip = folder / "sys/class/hwmon/hwmon3"
    assert os.readlink(chip) == "../../devices/chip"
    assert (chip / "name").read_text() == "ina3221\n"
    modes = {name: oct((chip / name).stat().st_mode & 0o777) for name in ("name", "limit", "energy_uj")}
    assert modes == {"name": "0o444", "limit": "0o644", "energy_uj": "0o0"}
    assert (folder / "sys/class/net/eth0/device").is_dir()


def test_archive_is_written_completely_or_not_at_all_and_replaces_nothing(tmp_path):
    path = tmp_path / "board.tar.gz"

    def stopped():
        yield ENTRIES[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_archive(path, manifest(), stopped())
    assert list(tmp_path.iterdir()) == []
    path.write_text("another")
    with pytest.raises(FileExistsError):
        write_archive(path, manifest(), ENTRIES)
    assert [each.name for each in tmp_path.iterdir()] == ["board.tar.gz"]
    assert path.read_text() == "another"


def test_archives_of_the_same_files_are_equal_and_name_nobody(tmp_path):
    paths = [tmp_path / "one.tar.gz", tmp_path / "two.tar.gz"]
    for path in paths:
        write_archive(path, manifest(), ENTRIES)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with tarfile.open(paths[0]) as opened:
        assert {(each.uid, each.gid, each.uname, each.mtime) for each in opened} == {(0, 0, "", 0)}


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([member("/root/x")], "outside of its root"),
        ([member("root/../../x", content=b"x")], "outside of its root"),
        ([member("other/x")], "outside of its root"),
        ([member("root")], "outside of its root"),
        ([member("root/x", tarfile.SYMTYPE, "/etc/passwd")], "`x` is a link out of it"),
        ([member("root/x", tarfile.SYMTYPE, "../../..")], "`x` is a link out of it"),
        # each target alone seems to be inside
        ([member("root/a", tarfile.SYMTYPE, "."), member("root/b", tarfile.SYMTYPE, "a/../..")], "a link out of it"),
        ([member("root/a", tarfile.SYMTYPE, "b"), member("root/b", tarfile.SYMTYPE, "../..")], "a link out of it"),
        ([member("root/a", tarfile.SYMTYPE, "../.."), member("root/a/x", content=b"x")], "is in it twice"),
        ([member("root/a", content=b"x"), member("root/a/x", content=b"x")], "`a` is in it twice"),
        ([member("root/a/x", content=b"x"), member("root/a", tarfile.SYMTYPE, "b")], "`a` is in it twice"),
        ([member("root/a", content=b"x"), member("root/a", content=b"y")], "`a` is in it twice"),
        ([member("root/a", content=b"x"), member("root/a", tarfile.DIRTYPE)], "`a` is in it twice"),
        ([member("root/a", content=b"x"), member("root/b", tarfile.LNKTYPE, "root/a")], "a hard link"),
        ([member("root/x", tarfile.CHRTYPE)], "a device, a pipe or a hard link"),
        ([member("root/x", tarfile.BLKTYPE)], "a device, a pipe or a hard link"),
        ([member("root/x", tarfile.FIFOTYPE)], "a device, a pipe or a hard link"),
    ],
)
def test_archive_that_leaves_its_folder_is_refused(made, folder, members, reason):
    assert reason in refused(made(*members), folder)


@pytest.mark.parametrize(
    ("documents", "reason"),
    [
        ({}, "it is not a recording of a machine"),
        ({"manifest.json": b"{}"}, "it is not a recording of a machine"),
        ({"manifest.json": b"[1]"}, "its manifest.json is damaged"),
        ({"manifest.json": b"[" * 100_000}, "its manifest.json is damaged"),
        (manifest(1, version=99), "it has version 99, and this is version 1"),
        (manifest(2), "it has 1 of 2 files"),
    ],
)
def test_foreign_or_incomplete_archive_is_refused(made, folder, documents, reason):
    assert reason in refused(made(member("root/x", content=b"x"), documents=documents), folder)


@pytest.mark.parametrize(("limit", "most"), [("MAX_BYTES", 1000), ("MAX_MEMBERS", 3)])
def test_archive_that_is_too_large_is_refused(made, folder, monkeypatch, limit, most):
    monkeypatch.setattr(archive, limit, most)
    members = [member(f"root/{number}", content=b"x" * 300) for number in range(8)]
    assert "it has more than" in refused(made(*members), folder)


def test_archive_that_unpacks_to_more_than_it_says_is_refused(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(archive, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(archive, "MAX_MEMBERS", 10)
    path, zeros = tmp_path / "board.tar.gz", bytes(1 << 22)
    write_archive(path, manifest(), ENTRIES)
    content = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(content + zeros))
    assert "it is too large" in refused(path, folder)
    long_header = tarfile.TarInfo("root/x")
    long_header.pax_headers = {"comment": "x" * len(zeros)}
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as opened:
        opened.addfile(long_header)
    (other := tmp_path / "outer/other").mkdir()
    assert "it is too large" in refused(path, other)


def test_truncated_and_damaged_archives_are_refused(tmp_path, folder):
    path = tmp_path / "board.tar.gz"
    drawn = random.Random(7)
    entries = [Entry(f"sys/{number}", 0o644, drawn.randbytes(500), access="rw") for number in range(40)]
    write_archive(path, manifest(len(entries)), entries)
    complete = path.read_bytes()
    for length in {*range(0, len(complete), len(complete) // 12), len(complete) - 1, len(complete) - 8}:
        path.write_bytes(complete[:length])
        (inside := Path(folder, str(length))).mkdir()
        with pytest.raises(InputError, match=r"truncated or damaged|not a recording|of 40 files"):
            unpack(path, inside)
    for place in range(20, len(complete), len(complete) // 12):
        path.write_bytes(complete[:place] + bytes([complete[place] ^ 0x55]) + complete[place + 1 :])
        (inside := Path(folder, f"at{place}")).mkdir()
        with pytest.raises(InputError):
            unpack(path, inside)
    path.write_bytes(gzip.compress(b"no archive"))
    with pytest.raises(InputError, match="damaged"):
        unpack(path, folder)
