import functools
import hashlib
import http.server
import shutil
import threading

import pytest
from tiny import pack

from epochmeter.config.job import to_plain
from epochmeter.datasets.parallel_text import make
from epochmeter.shared.instantiate import target_arguments
from epochmeter.shared.problem import InputError, MachineError

FILES = {"train": ("train.en", "train.vi"), "val": ("tst2012.en", "tst2012.vi")}
TEXTS = {
    "train.en": "a  b .\n\nit &apos;s c\n", "train.vi": "x y .\nz\nw\tv\n",
    "tst2012.en": "b a\n", "tst2012.vi": "y x\n",
}  # fmt: skip
CONTENTS = {name: text.encode() for name, text in TEXTS.items()}
SHA256 = {split: [hashlib.sha256(CONTENTS[name]).hexdigest() for name in names] for split, names in FILES.items()}
EXPECTED = {"train.tsv": "a b .\tx y .\nit &apos;s c\tw v\n", "val.tsv": "b a\ty x\n"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data" / "made").mkdir(parents=True)
    return tmp_path / "data" / "made"


@pytest.fixture
def downloads(tmp_path):
    """A folder with the files as published."""
    (tmp_path / "downloads").mkdir()
    for name, content in CONTENTS.items():
        (tmp_path / "downloads" / name).write_bytes(content)
    return tmp_path / "downloads"


@pytest.fixture
def prepare(folder):
    """prepare(archives, **arguments): the number of pairs of each split."""

    def run(archives, url=None, sha256=SHA256, train_pairs=None, say=print):
        where = str(archives) if archives else None
        facts = make(folder, where, "pairs.tar.gz", url, FILES, sha256, train_pairs, say)
        return facts["splits"]

    return run


@pytest.fixture
def url(downloads):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=downloads)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def made(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_files_are_downloaded_by_name_once_and_verified(prepare, folder, url, downloads):
    messages = []
    assert prepare(None, url, say=messages.append) == {"train": 2, "val": 1}
    assert made(folder) == EXPECTED
    assert "1 pairs of train.en and train.vi with an empty sentence are left out" in messages
    shutil.rmtree(downloads)
    assert prepare(None, url) == {"train": 2, "val": 1}, "they are next to the folder"


@pytest.mark.parametrize("top", ["", "./", "iwslt15/en-vi/"])
def test_files_are_taken_from_a_folder_or_from_an_archive_with_any_folder_inside(prepare, folder, downloads, top):
    assert prepare(downloads) == {"train": 2, "val": 1}
    pairs = made(folder)
    for name in CONTENTS:
        (downloads / name).unlink()
    pack(downloads / "pairs.tar.gz", {f"{top}{name}": content for name, content in CONTENTS.items()})
    assert prepare(downloads, train_pairs=1) == {"train": 1, "val": 1}
    assert made(folder) == {**EXPECTED, "train.tsv": "a b .\tx y .\n"}
    assert pairs == EXPECTED


def test_other_file_is_an_error_with_its_checksum_and_what_to_do(prepare, downloads, url):
    (downloads / "train.vi").write_bytes(b"others\n")
    for archives in (downloads, None):
        with pytest.raises(
            InputError, match=r"train.vi\S* has the SHA-256 \w+ instead of \w+\n  hint: .*make.sha256=null"
        ):
            prepare(archives, url)
    (downloads / "train.vi").unlink()
    with pytest.raises(MachineError, match=r"cannot download .*train.vi: HTTP Error 404"):
        prepare(None, url)
    with pytest.raises(InputError, match=r"has neither train.vi nor pairs.tar.gz\n  hint: set `dataset.archives="):
        prepare(downloads)
    with pytest.raises(InputError, match=r"download pairs.tar.gz into a folder, and set `dataset.archives="):
        prepare(None)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("train.en", b"a\nb\n", "train.en ends before line 3"),
        ("train.vi", b"x\n", "train.vi ends before line 2"),
        ("tst2012.en", b"\n", "have no pairs"),
        ("tst2012.vi", b"\xff\n", "tst2012.vi, line 1 is not UTF-8"),
    ],
)
def test_files_that_do_not_match_are_an_error(prepare, downloads, name, content, error):
    (downloads / name).write_bytes(content)
    with pytest.raises(InputError, match=error):
        prepare(downloads, sha256=None)


def test_truncated_archive_and_one_without_the_files_are_errors(prepare, downloads):
    for name in CONTENTS:
        (downloads / name).unlink()
    archive = downloads / "pairs.tar.gz"
    pack(archive, CONTENTS)
    complete = archive.read_bytes()
    for content in (b"<html>confirm the download</html>", complete[: len(complete) // 2], b""):
        archive.write_bytes(content)
        with pytest.raises(InputError, match=r"pairs.tar.gz is incomplete or another archive: .*\n  hint: download"):
            prepare(downloads, sha256=None)
    for contents in ({"train.de": b""}, {"a/train.en": b"", "b/train.en": b""}):
        pack(archive, contents)
        with pytest.raises(InputError, match=r"it has train.en [02] times"):
            prepare(downloads)


@pytest.mark.parametrize("name", ["iwslt15", "wmt16"])
def test_configured_datasets_have_the_arguments_of_the_function(composed, name, folder, downloads):
    dataset = to_plain(composed(f"dataset={name}"))["dataset"]
    arguments = target_arguments(dataset["make"])
    files = {
        text: content
        for names in arguments["files"].values()
        for text, content in zip(names, (b"a\n", b"x\n"), strict=True)
    }
    pack(downloads / arguments["archive"], {f"top/{text}": content for text, content in files.items()})
    for text in CONTENTS:
        (downloads / text).unlink()
    facts = make(folder, say=print, **{**arguments, "archives": str(downloads), "sha256": None})
    assert facts["splits"] == {"train": 1, "val": 1}
