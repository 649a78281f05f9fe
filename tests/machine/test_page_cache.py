import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from epochmeter.machine import page_cache
from epochmeter.machine.page_cache import (
    Residency,
    cached_share,
    drop_caches,
    evict,
    files,
    missed,
    prepare,
    sampled,
    warm,
)

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


def test_links_are_followed_but_not_in_circles_and_nothing_is_waited_for(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a").touch()
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / "train").symlink_to(elsewhere)
    (folder / "b").symlink_to(elsewhere / "a")
    (folder / "back").symlink_to(folder)
    (folder / "nowhere").symlink_to(folder / "nothing")
    (folder / "itself").symlink_to(folder / "itself")
    os.mkfifo(folder / "pipe")
    assert sorted(files(folder)) == [str(folder / "b"), str(folder / "train/a")]


def test_what_was_just_written_is_cached(folder):
    assert share(folder) == 1


def test_what_is_evicted_is_not_cached_even_if_it_was_dirty(folder):
    evict(files(folder))
    assert share(folder) == 0


def test_what_was_read_whole_is_cached(folder):
    evict(files(folder))
    warm(files(folder))
    assert share(folder) == 1


def test_a_file_that_is_gone_ends_neither(folder):
    paths = [str(folder / "gone"), *files(folder)]
    evict(paths)
    assert share(folder) == 0
    warm(paths)
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


@pytest.mark.parametrize(
    ("cache", "said"),
    [("keep", [None, None]), ("cold", ["cold", None]), ("cold_each_epoch", ["cold", "cold"]), ("warm", ["warm", None])],
)
def test_what_was_done_is_told(folder, cache, said):
    assert [prepare(cache, folder, epoch) for epoch in (0, 1)] == said


@pytest.mark.parametrize(("asked", "share"), [("cold", 0.0), ("cold", 0.01), ("warm", 1.0), (None, 0.5), (None, None)])
def test_a_cache_that_is_as_asked_needs_no_word(asked, share):
    assert missed(asked, share) == []


@pytest.mark.parametrize(
    ("asked", "share", "said"),
    [
        ("cold", 0.42, "42% of the dataset stayed in it, though cold was asked for"),
        ("warm", 0.62, "62% of the dataset is in it, though warm was asked for: it has no room for more"),
        ("cold", None, "whether the dataset is cold cannot be known here"),
        ("warm", None, "whether the dataset is warm cannot be known here"),
    ],
)
def test_a_cache_that_is_not_known_to_be_as_asked_is_told(asked, share, said):
    (note,) = missed(asked, share)
    assert said in note


def test_what_lies_in_memory_cannot_be_cold_and_is_warm():
    assert missed("cold", 1.0, "ram") == [
        "page cache: the dataset lies in memory: it cannot be cold, though cold was asked for."
    ]
    assert missed("warm", 1.0, "ram") == missed(None, 1.0, "ram") == []


def test_the_cached_share_is_that_of_what_is_trained_on(folder):
    (folder / "train").mkdir()
    (folder / "train/d").write_bytes(b"x" * PAGE)
    evict([str(folder / "train/d")])
    assert Residency(folder).share() == 0, "the other files are cached"
    warm(files(folder))
    assert Residency(folder).share() == 1


def test_a_share_that_cannot_be_looked_at_is_none_with_the_reason(folder):
    residency = Residency(folder)
    (folder / "a").unlink()
    assert residency.share() is None
    assert "No such file" in residency.reason


def test_of_many_files_as_many_are_looked_at_as_time_allows_and_each_is_as_likely():
    paths = [str(number) for number in range(100_000)]
    chosen = sampled(iter(paths), 2000)
    assert len(set(chosen)) == 2000
    assert sampled(iter(paths), 2000) == chosen, "the same ones in every epoch"
    tenths = [sum(int(path) // 10_000 == tenth for path in chosen) for tenth in range(10)]
    assert all(140 <= count <= 260 for count in tenths), tenths  # 200 each, four and a half standard deviations


def test_few_files_are_all_looked_at():
    assert sampled(iter(["a", "b"]), 3) == ["a", "b"]


class Sudo:
    """What `sudo -n tee` does, without being root."""

    def __init__(self, code, said=""):
        self.returncode, self.stderr = code, said
        self.asked = None

    def __call__(self, command, **how):
        self.asked = (command, how["input"])
        return self


@pytest.fixture
def unwritable(monkeypatch, tmp_path):
    monkeypatch.setattr(page_cache, "DROP", str(tmp_path / "no/drop_caches"))
    return page_cache.DROP


def test_caches_are_dropped_by_sudo_where_this_user_may_not(monkeypatch, unwritable):
    sudo = Sudo(0)
    monkeypatch.setattr(page_cache.subprocess, "run", sudo)
    drop_caches()
    assert sudo.asked == (["sudo", "-n", "tee", unwritable], "3")


def test_caches_that_may_not_be_dropped_are_an_error_that_says_what_would_allow_it(monkeypatch, unwritable):
    monkeypatch.setattr(page_cache.subprocess, "run", Sudo(1, "sudo: a password is required"))
    with pytest.raises(RuntimeError, match=r"(?s)drop_caches=true .*password is required.*sudoers.*leave it out"):
        drop_caches()


def test_a_stop_while_the_kernel_is_asked_is_not_lost_to_a_mapping_that_cannot_be_closed(folder, monkeypatch):
    monkeypatch.setattr(page_cache, "LIBC", SimpleNamespace(mincore=lambda *asked: sys.exit(143)))
    with pytest.raises(SystemExit):
        share(folder)
