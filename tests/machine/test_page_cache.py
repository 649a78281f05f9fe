import os
from pathlib import Path

import pytest

from trainmeter.machine.page_cache import cached_share, evict, files, prepare, unevicted, warm

PAGE = os.sysconf("SC_PAGE_SIZE")


def file_system(folder):
    """The type of the file system a folder lies on: of the mounts it is below, the deepest."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    below = [(len(fields[4]), fields[fields.index("-") + 1]) for fields in mounts if is_below(folder, fields[4])]
    return max(below)[1]


def is_below(folder, mount):
    return Path(mount) in (folder, *folder.parents)


@pytest.fixture
def folder(tmp_path):
    """Three files of 100 pages in all, just written: so cached, and dirty."""
    kind = file_system(tmp_path)
    if kind in ("tmpfs", "ramfs", "overlay", "zfs"):
        pytest.skip(f"{kind} keeps its pages, or keeps them elsewhere: nothing can be evicted there")
    (tmp_path / "below").mkdir()
    for name, pages in [("a", 10), ("below/b", 89), ("below/c", 0.5), ("empty", 0)]:
        (tmp_path / name).write_bytes(b"x" * int(PAGE * pages))
    return tmp_path


def share(folder):
    return cached_share(files(folder))


def test_all_files_below_a_folder_are_meant(folder):
    assert sorted(files(folder)) == [str(folder / name) for name in ("a", "below/b", "below/c", "empty")]


def test_what_was_just_written_is_cached(folder):
    assert share(folder) == 1


def test_what_is_evicted_is_not_cached_even_if_it_was_dirty(folder):
    evict(files(folder))
    assert share(folder) == 0


def test_what_was_read_whole_is_cached(folder):
    evict(files(folder))
    warm(files(folder))
    assert share(folder) == 1


def test_the_share_counts_pages_not_files(folder):
    evict([str(folder / "a")])
    assert share(folder) == pytest.approx(0.9)


def test_no_pages_have_no_share(folder):
    assert cached_share([str(folder / "empty")]) is None


@pytest.mark.parametrize(
    ("cache", "before_first", "before_second"),
    [("keep", 1, 1), ("cold", 0, 1), ("cold_each_epoch", 0, 0), ("warm", 1, 1)],
)
def test_the_cache_is_prepared_as_asked_before_each_epoch(folder, cache, before_first, before_second):
    prepare(cache, folder, epoch=0)
    assert share(folder) == before_first
    warm(files(folder))
    prepare(cache, folder, epoch=1)
    assert share(folder) == before_second


def test_a_cold_dataset_is_warmed_when_asked(folder):
    evict(files(folder))
    prepare("warm", folder)
    assert share(folder) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not write the file")
def test_to_whoever_could_not_write_the_share_is_unknown(folder, monkeypatch):
    """The kernel would say that all is cached, whatever is."""
    evict(files(folder))
    folder.chmod(0o755)
    monkeypatch.chdir(folder)
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        os._exit(0 if cached_share(["a"]) is None else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_cache_that_is_cold_needs_no_word():
    assert unevicted(0.0) == []


@pytest.mark.parametrize(("share", "said"), [(0.42, "42% of the dataset stayed in it"), (None, "cannot be known here")])
def test_a_cache_that_is_not_known_to_be_cold_is_told(share, said):
    (note,) = unevicted(share)
    assert said in note
