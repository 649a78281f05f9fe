import os
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from epochmeter.machine import page_cache
from epochmeter.machine.disk import disk_of
from epochmeter.machine.page_cache import Residency, evict, iter_files, residency_warning, resident_fraction
from epochmeter.shared.problem import machine_error

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def folder(tmp_path):
    """Files with 100 pages in total, just written: cached and dirty."""
    kind = disk_of(tmp_path).filesystem
    if kind in ("tmpfs", "ramfs", "overlay", "zfs"):
        pytest.skip(f"pages of {kind} cannot be evicted")
    (tmp_path / "below").mkdir()
    for name, pages in [("a", 10), ("below/b", 89), ("below/c", 0.5), ("empty", 0)]:
        (tmp_path / name).write_bytes(b"x" * int(PAGE * pages))
    return tmp_path


def share(folder):
    return resident_fraction(iter_files(folder))


def test_links_are_followed_once_and_pipes_are_skipped(tmp_path):
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "dataset"
    elsewhere.mkdir()
    folder.mkdir()
    (elsewhere / "a").touch()
    links = {"train": elsewhere, "b": elsewhere / "a", "back": folder, "nowhere": "nothing", "itself": "itself"}
    (elsewhere / "again").symlink_to(elsewhere)
    for name, target in links.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe")
    assert sorted(iter_files(folder)) == [str(folder / "b"), str(folder / "train/a")]


@pytest.mark.parametrize(
    ("cache", "cached", "states"),
    [
        ("keep", [1, 1], [None, None]),
        ("cold", [0, 1], ["cold", None]),
        ("cold_each_epoch", [0, 0], ["cold", "cold"]),
        ("warm", [1, 1], ["warm", None]),
    ],
)
def test_cache_is_prepared_before_each_epoch(folder, cache, cached, states):
    assert share(folder) == 1, "just written"
    if cache == "warm":
        evict([str(folder / "gone"), *iter_files(folder)])  # a missing file is skipped
    for epoch in (0, 1):
        assert page_cache.prepare_cache(cache, folder, epoch) == states[epoch]
        assert share(folder) == cached[epoch]
        page_cache.read_into_cache(iter_files(folder))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not write the file")
def test_reader_without_write_permission_evicts_files_of_unknown_residency(folder, monkeypatch):
    """The kernel would report all pages as cached."""
    folder.chmod(0o755)
    (folder / "a").chmod(0o644)
    monkeypatch.chdir(folder)
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        evict(["a"])
        os._exit(0 if resident_fraction(["a"]) is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert resident_fraction(["a"]) == 0


@pytest.mark.parametrize("is_privileged", [True, False])
def test_administrator_measures_files_of_others_on_a_read_only_mount(folder, monkeypatch, is_privileged):
    evict([str(folder / "a")])
    monkeypatch.setattr(os, "geteuid", lambda: 2**20)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(page_cache.privilege, "has_capability", lambda number: is_privileged and number == 3)
    assert share(folder) == (0.9 if is_privileged else None)


def test_unexpected_or_unknown_cache_state_has_a_note():
    assert residency_warning("cold", 0.01) + residency_warning("warm", 0.99) + residency_warning(None, 0.5) == []
    for expected, share, medium, note in (
        ("cold", 0.42, "ssd", " 42 % of the dataset is cached"),
        ("warm", 0.62, "ssd", "only 62 % of the dataset is cached"),
        ("cold", None, "ssd", "cannot check that the dataset is cold"),
        ("warm", None, "ssd", "cannot check that the dataset is warm"),
        ("cold", 1.0, "ram", "in memory"),
    ):
        (text,) = residency_warning(expected, share, medium)
        assert note in text


def test_refused_drop_caches_is_an_error_with_the_option(monkeypatch):
    refusal = machine_error("`tee /proc/sys/vm/drop_caches` needs root", "a rule")
    monkeypatch.setattr(page_cache.privilege, "write_file", Mock(side_effect=refusal))
    with pytest.raises(
        RuntimeError, match=r"^drop_caches=true: `tee /proc/sys/vm/drop_caches` needs root\n  hint: a rule$"
    ):
        page_cache.drop_caches()


def test_stop_during_mincore_is_not_replaced_by_an_error(folder, monkeypatch):
    monkeypatch.setattr(page_cache, "LIBC", SimpleNamespace(mincore=lambda *_: sys.exit(143)))
    with pytest.raises(SystemExit):
        share(folder)


def test_fraction_of_files_that_change_meanwhile_is_unknown_with_the_reason(folder, monkeypatch):
    residency, fstat = Residency(folder), os.fstat

    def truncating(descriptor):
        status = fstat(descriptor)
        os.truncate(f"/proc/self/fd/{descriptor}", 0)
        return status

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", truncating)
        assert residency.fraction() is None
    assert residency.reason.startswith("the files cannot be examined: ")
    (folder / "a").unlink()
    assert residency.fraction() is None


def test_cached_fraction_is_that_of_a_sample_of_the_training_files(folder, monkeypatch):
    (folder / "train").mkdir()
    for number in range(300):
        (folder / f"train/{number}").write_bytes(b"x" * PAGE)
    evict(str(folder / f"train/{number}") for number in range(150))
    assert Residency(folder).fraction() == 0.5, "the other files are cached"
    monkeypatch.setattr(page_cache, "MAX_FILES", 100)
    fraction = Residency(folder).fraction()
    assert fraction == Residency(folder).fraction() == pytest.approx(0.5, abs=0.2)
    assert 100 * fraction == round(100 * fraction)
