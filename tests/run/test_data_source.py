"""Sources of samples, with real files and the kernel's page cache."""

from dataclasses import replace

import pytest
from default_jobs import job_of

from epochmeter.machine.disk import Disk, ReadCounters
from epochmeter.run import instruments
from epochmeter.run.instruments import DataSource, FileSource, open_data_source

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


def test_source_of_a_script_is_its_file_or_unknown(folder):
    job = job_of(cache="cold")
    measure = replace(job.measure, command=["train.py"], data=str(folder / "train/cat/0.png"))
    source = open_data_source(replace(job, measure=measure), None, print)
    source.prepare(0)
    source.mark()
    source.mark()
    assert source.window("epoch", 1.0)["page_cache_residency_after"] == 0.0
    unknown = open_data_source(replace(job, measure=replace(measure, data=None)), None, print)
    assert unknown.metadata == {"reason": instruments.NO_DATA}
    assert unknown.window("epoch", 1.0) == {}


@pytest.fixture
def files(folder, monkeypatch):
    """files(*counters, cache=) -> the data source from that folder, whose disk's counters are scripted."""

    def made(*counters, cache="keep", reason=None):
        readings = iter(counters)
        monkeypatch.setattr(instruments, "read_counters", lambda disk: next(readings))
        monkeypatch.setattr(instruments, "disk_of", lambda folder: Disk(("sda1",), "ssd", "ext4", reason))
        monkeypatch.setattr(instruments, "describe", lambda disk: {"medium": disk.medium})
        return FileSource(folder, job_of(cache=cache), print)

    return made


def windowed(opened, name="epoch", seconds=2.0):
    opened.mark()
    opened.mark()
    return opened.window(name, seconds)


def test_reads_are_differences_of_the_disks_counters(files):
    opened = files(*[ReadCounters(100, 4000), ReadCounters(120, 10000)] * 2)
    found = windowed(opened)
    assert {key: found[key] for key in READS} == READS
    assert windowed(opened, name="val") == {"read_bytes": 6000}


FEW, MANY = ReadCounters(2, 100), ReadCounters(9, 900)


@pytest.mark.parametrize("counters", [(None, None), (FEW, None), (None, FEW), (MANY, FEW)])
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
def test_caches_are_dropped_last_and_only_for_a_cold_cache(folder, monkeypatch, cache, epochs):
    done = []
    opened = FileSource(folder, job_of(cache=cache, drop_caches=True), print)
    monkeypatch.setattr(instruments, "drop_caches", lambda: done.append("dropped"))
    look = opened._residency.fraction
    monkeypatch.setattr(opened._residency, "fraction", lambda: done.append("looked") or look())
    for epoch in range(2):
        opened.prepare(epoch)
        assert done == ["looked", "dropped"][: 2 if epoch in epochs else 1]
        done.clear()


def test_uncounted_reads_have_a_single_note_with_the_reason(files):
    opened = files(reason="tmpfs is in memory")
    notes = ["disk reads are not counted: tmpfs is in memory"]
    assert [opened.prepare(epoch) for epoch in range(2)] == [notes, []]


@pytest.mark.parametrize(
    ("changed", "storage"),
    [({}, True), ({"synthetic_batches": True}, False), ({"dataset": {"layout": "memory"}}, False)],
)
def test_layouts_in_memory_use_no_storage(folder, changed, storage):
    assert isinstance(open_data_source(job_of(**changed), str(folder), print), FileSource) is storage
    in_memory = open_data_source(job_of(**changed), None, print)
    assert type(in_memory) is DataSource
    assert windowed(in_memory) == {}
