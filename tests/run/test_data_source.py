"""Sources of samples, with real files and the kernel's page cache."""

import pytest
from default_jobs import job_of

from epochmeter.machine.disk import Disk, ReadCounters
from epochmeter.run import data_source
from epochmeter.run.data_source import FileSource, InMemorySource, is_in_memory, open_data_source

READS = {"read_bytes": 6000, "read_iops": 10.0, "read_bytes_per_s": 3000.0}


@pytest.fixture
def folder(tmp_path):
    """A dataset of two splits, and files of ten pages each."""
    for split in ("train", "val"):
        place = tmp_path / "set" / split / "cat"
        place.mkdir(parents=True)
        for index in range(4):
            (place / f"{index}.png").write_bytes(b"x" * 40960)
    return tmp_path / "set"


@pytest.fixture
def messages():
    """The printed messages."""
    return []


@pytest.fixture
def files(folder, messages, monkeypatch):
    """files(*counters, cache=) -> the data source from that folder, whose disk's counters are scripted."""

    def made(*counters, cache="keep", reason=None):
        readings = iter(counters)
        monkeypatch.setattr(data_source, "read_counters", lambda disk: next(readings))
        monkeypatch.setattr(data_source, "disk_of", lambda folder: Disk(("sda1",), "ssd", "ext4", reason))
        monkeypatch.setattr(data_source, "describe", lambda disk: {"medium": disk.medium})
        return FileSource(folder, cache, False, messages.append)

    return made


def windowed(opened, name="epoch", seconds=2.0):
    opened.mark()
    opened.mark()
    return opened.window(name, seconds)


def test_reads_are_differences_of_the_disks_counters(files):
    found = windowed(files(ReadCounters(100, 4000), ReadCounters(120, 10000)))
    assert {key: found[key] for key in READS} == READS


def test_each_window_has_its_own_reads(files):
    opened = files(ReadCounters(0, 0), ReadCounters(1, 10), ReadCounters(5, 100), ReadCounters(7, 400))
    assert windowed(opened)["read_bytes"] == 10
    assert windowed(opened)["read_bytes"] == 300


def test_evaluation_has_only_the_bytes_read(files):
    assert windowed(files(ReadCounters(100, 4000), ReadCounters(120, 10000)), name="val") == {"read_bytes": 6000}


@pytest.mark.parametrize(
    "counters",
    [
        (None, None),
        (ReadCounters(1, 1), None),
        (None, ReadCounters(1, 1)),
        (ReadCounters(9, 900), ReadCounters(2, 100)),
    ],
)
def test_absent_or_reconnected_disk_has_no_reads_but_the_residency(files, counters):
    assert windowed(files(*counters)).keys() == {"page_cache_residency_after"}


def test_what_was_just_written_is_cached_and_cold_puts_it_out(files):
    opened = files(None, None, None, None)
    opened.prepare(0)
    assert windowed(opened)["page_cache_residency_before"] == 1
    opened = files(None, None, cache="cold")
    opened.prepare(0)
    found = windowed(opened)
    assert (found["page_cache_residency_before"], found["page_cache_residency_after"]) == (0, 0)


@pytest.mark.parametrize(("cache", "epochs"), [("keep", []), ("warm", []), ("cold", [0]), ("cold_each_epoch", [0, 1])])
def test_caches_are_dropped_last_and_only_for_a_cold_cache(folder, messages, monkeypatch, cache, epochs):
    done = []
    opened = FileSource(folder, cache, True, messages.append)
    monkeypatch.setattr(data_source, "drop_caches", lambda: done.append("dropped"))
    look = opened._residency.fraction
    monkeypatch.setattr(opened._residency, "fraction", lambda: done.append("looked") or look())
    for epoch in range(2):
        opened.prepare(epoch)
        assert done == ["looked", "dropped"][: 2 if epoch in epochs else 1]
        done.clear()


def test_files_read_in_an_epoch_are_resident_after_it(files, folder):
    opened = files(None, None, cache="cold")
    opened.prepare(0)
    opened.mark()
    for path in sorted(folder.glob("train/*/*"))[:2]:
        path.read_bytes()
    opened.mark()
    assert opened.window("epoch", 1.0)["page_cache_residency_after"] == pytest.approx(0.5)


def test_uncounted_reads_have_a_single_note_with_the_reason(files):
    opened = files(reason="tmpfs is in memory")
    assert opened.prepare(0) == ["disk reads are not counted: tmpfs is in memory"]
    assert opened.prepare(1) == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [({}, False), ({"synthetic_batches": True}, True), ({"dataset": {"layout": "memory"}}, True)],
)
def test_layouts_in_memory_use_no_storage(changed, expected):
    assert is_in_memory(job_of(**changed)) is expected


@pytest.mark.parametrize("layout", ["memory", "tensors"])
def test_source_in_memory_has_no_metrics(folder, layout):
    found = open_data_source(job_of(dataset={"layout": layout}), str(folder), print)
    assert isinstance(found, InMemorySource)
    assert found.prepare(0) == []
    assert windowed(found) == {}


def test_dataset_without_files_is_in_memory():
    assert isinstance(open_data_source(job_of(), None, print), InMemorySource)


def test_metadata_has_the_storage_medium(folder):
    assert open_data_source(job_of(), str(folder), print).metadata["medium"]


def test_reading_into_the_page_cache_is_announced_once(files, folder, messages):
    opened = files(cache="warm")
    opened.prepare(0)
    opened.prepare(1)
    assert messages == [f"Reading {folder} into the page cache."]
