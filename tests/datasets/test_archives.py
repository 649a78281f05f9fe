import gzip
import io
import tarfile

import pytest

from epochmeter.datasets.archives import unpack

FILES = {"top/a": b"first" * 200, "top/below/b": b""}


def write(path, *members):
    with tarfile.open(path, "w") as tar:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info, io.BytesIO(b""))
    return path


@pytest.mark.parametrize("name", ["archive.tar", "archive.tar.gz"])
def test_files_are_unpacked_to_their_paths(pack, tmp_path, name):
    pack(tmp_path / name, FILES)
    unpack(tmp_path / name, tmp_path / "out", print)
    assert {path: (tmp_path / "out" / path).read_bytes() for path in FILES} == FILES


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("top/../../outside", tarfile.REGTYPE),
        ("/outside", tarfile.REGTYPE),
        ("outside", tarfile.SYMTYPE),
        ("outside", tarfile.LNKTYPE),
        ("outside", tarfile.CHRTYPE),
    ],
)
def test_unsafe_member_is_rejected_and_not_written(tmp_path, name, kind):
    members = [(name, kind, str(tmp_path)), (f"{name}/file", tarfile.REGTYPE, "")]
    archive = write(tmp_path / "archive.tar", *members)
    with pytest.raises(ValueError, match=f"is not safe to unpack: {name}"):
        unpack(archive, tmp_path / "in" / "out", print)
    assert [path.name for path in tmp_path.rglob("*")] == ["archive.tar"]


@pytest.mark.parametrize("length", [0, 100, 512, 700, 2048, 2100])
def test_truncated_archive_is_an_error_at_any_length(pack, tmp_path, length):
    """Within a header, within a file, between two files, and before the mark at its end."""
    path = tmp_path / "archive.tar"
    pack(path, FILES)
    assert len(path.read_bytes()) > 2100
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=rf"{path} is not a complete tar archive"):
        unpack(path, tmp_path / "out", print)


def test_truncated_or_damaged_compressed_archive_is_an_error(pack, tmp_path):
    path = tmp_path / "archive.tar.gz"
    pack(path, {"a": bytes(range(256)) * 100})
    data = path.read_bytes()
    for broken in (data[: len(data) // 2], data[:-8] + bytes(8), b"no archive", gzip.compress(b"no tar")):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="is not a complete tar archive"):
            unpack(path, tmp_path / "out", print)
        (tmp_path / "out" / "a").unlink(missing_ok=True)


def test_archive_damaged_between_files_is_an_error(pack, tmp_path):
    path = tmp_path / "archive.tar"
    pack(path, FILES)
    damaged = bytearray(path.read_bytes())
    damaged[512 + 1024] ^= 0xFF  # the second header, after the first and its two blocks
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="damaged at byte 1536"):
        unpack(path, tmp_path / "out", print)
