"""Files of a run folder from another user: what is not a plain file is refused, at once."""

import json
import os
import socket

import pytest

from epochmeter.shared.record import Record
from epochmeter.shared.record_files import (
    MAX_DEPTH,
    MAX_JSON_BYTES,
    open_file,
    parse_json,
    read_bytes,
    read_document,
    refusal,
)

LINK, NOT_A_FILE = "it is a link, and links are not followed", "it is not a regular file"


def make_link(path):
    path.with_name("private").write_text("[1]")
    path.symlink_to("private")


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_link, LINK),
        (lambda path: path.symlink_to("/dev/zero"), LINK),
        (lambda path: path.symlink_to("nowhere"), LINK),
        (os.mkfifo, NOT_A_FILE),
        (make_socket, NOT_A_FILE),
        (os.mkdir, NOT_A_FILE),
    ],
)
def test_links_pipes_and_folders_are_refused_without_waiting(tmp_path, make, reason):
    make(path := tmp_path / "job.json")
    assert refusal(path) == reason
    for read in (read_document, open_file, lambda path: Record(path.parent).job()):
        with pytest.raises(OSError, match=reason) as error:
            read(path)
        assert error.value.filename == str(path)


def test_files_are_read_up_to_a_size_and_a_missing_one_is_missing(tmp_path):
    (path := tmp_path / "summary.json").write_text("[1]")
    assert (read_document(path), read_bytes(path, 3), refusal(path, 3)) == ([1], b"[1]", "")
    with pytest.raises(OSError, match="larger than 2 bytes"):
        read_bytes(path, 2)
    os.truncate(path, MAX_JSON_BYTES + 1)
    with pytest.raises(OSError, match=f"larger than {MAX_JSON_BYTES:,} bytes"):
        Record(tmp_path).summary()
    with pytest.raises(FileNotFoundError):
        read_document(tmp_path / "none.json")
    assert refusal(tmp_path / "none.json") == ""


def nested(depth, innermost="1"):
    return "[" * depth + innermost + "]" * depth


def test_json_is_parsed_up_to_a_depth():
    assert parse_json(nested(MAX_DEPTH)) == json.loads(nested(MAX_DEPTH))
    flat = [[[]]] * MAX_DEPTH
    assert parse_json(json.dumps({"a": flat}).encode()) == {"a": flat}
    for text in (nested(MAX_DEPTH + 1), nested(100_000), '{"a":' * 100_000, "{}}", b'"\xff"'):
        with pytest.raises(ValueError, match=r"nested|Extra data|decode"):
            parse_json(text)
