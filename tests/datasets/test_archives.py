import gzip
import io
import tarfile

import pytest
from tiny import pack

from epochmeter.datasets.archives import unpack

FILES = {"top/a": b"first" * 200, "top/below/b": b""}


@pytest.mark.parametrize("name", ["archive.tar", "archive.tar.gz"])
def test_files_are_unpacked_to_their_paths(tmp_path, name):
    pack(tmp_path / name, FILES)
    unpack(tmp_path / name, tmp_path / "out", print)
    assert {path: (tmp_path / "out" / path).read_bytes() for path in FILES} == FILES


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, tarfile.REGTYPE) for name in ("top/../../outside", "/outside")),
        *(("outside", kind) for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE)),
    ],
)
def test_unsafe_member_is_rejected_and_not_written(tmp_path, name, kind):
    archive = tmp_path / "archive.tar"
    with tarfile.open(archive, "w") as tar:
        for path, what in ((name, kind), (f"{name}/file", tarfile.REGTYPE)):
            info = tarfile.TarInfo(path)
            info.type, info.linkname = what, str(tmp_path)
            tar.addfile(info, io.BytesIO(b""))
    with pytest.raises(ValueError, match=f"is not safe to unpack: {name}"):
        unpack(archive, tmp_path / "in" / "out", print)
    assert [path.name for path in tmp_path.rglob("*")] == ["archive.tar"]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        # within a header, within a file, between two files, and before the mark at its end
        *(("archive.tar", lambda data, n=length: data[:n]) for length in (0, 100, 512, 700, 2048, 2100)),
        ("archive.tar", lambda data: data[:1536] + b"x" + data[1537:]),  # the second header
        ("archive.tar.gz", lambda data: data[:60]),
        ("archive.tar.gz", lambda data: data[:-8] + bytes(8)),
        ("archive.tar.gz", lambda data: b"no archive"),
        ("archive.tar.gz", lambda data: gzip.compress(b"no tar")),
    ],
)
def test_truncated_or_damaged_archive_is_an_error(tmp_path, name, damage):
    path = tmp_path / name
    pack(path, FILES)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=rf"{path} is not a complete tar archive"):
        unpack(path, tmp_path / "out", print)


@pytest.mark.parametrize("second", ["top/a", "top/a/b"])
def test_archive_with_a_path_twice_is_an_error_of_the_archive(tmp_path, second):
    with tarfile.open(tmp_path / "archive.tar", "w") as tar:
        for name in ("top/a", second):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO(b""))
    with pytest.raises(ValueError, match=f"contains two files for {tmp_path}/out/{second}"):
        unpack(tmp_path / "archive.tar", tmp_path / "out", print)
