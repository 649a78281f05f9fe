import errno
import threading

import pytest
from tiny import make_config

from epochmeter.datasets.make import make

FACTS = {"splits": {"train": 1, "val": 0}, "classes": 1, "channels": 1, "source": "this test"}


@pytest.fixture
def dataset(monkeypatch):
    """dataset(maker, ...): a dataset created by the function `maker`."""

    def config(maker, **keys):
        monkeypatch.setattr("epochmeter.shared.instantiate.import_object", lambda path: maker)
        return make_config(make={"_target_": "module.maker"}, **keys)

    return config


def one_file(folder, say):
    (folder / "train").mkdir()
    (folder / "train" / "0").write_bytes(b"sample")
    return FACTS


@pytest.mark.parametrize(
    ("end", "expected", "message"),
    [
        (ValueError("wrong"), ValueError, "wrong"),
        (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
        (OSError(errno.ENOSPC, "No space left"), RuntimeError, r"dataset tiny.* MB are free\)\. Free .*dataset.root="),
        (OSError(errno.EROFS, "Read-only file system"), RuntimeError, r"Read-only.* Check that its disk"),
        (None, ValueError, r"returned NoneType without splits\.train, splits\.val, classes\. See docs"),
        ({"splits": {"train": 1}}, ValueError, r"returned dict without splits\.val, classes\. See docs"),
    ],
)
def test_maker_that_fails_or_returns_too_few_facts_leaves_nothing(dataset, tmp_path, end, expected, message):
    def half(folder, say):
        one_file(folder, say)
        if isinstance(end, BaseException):
            raise end
        return end

    with pytest.raises(expected, match=message):
        make(dataset(half, classes=1), tmp_path / "tiny", say=print)
    assert [path.name for path in tmp_path.iterdir()] == [".tiny.lock"]


def test_second_process_waits_for_the_first(dataset, tmp_path):
    is_waiting = threading.Event()
    calls, messages = [], []

    def one_file_slowly(folder, say):
        calls.append(folder)
        is_waiting.wait(timeout=10)
        return one_file(folder, say)

    def say(text):
        messages.append(text)
        if "waiting" in text:
            is_waiting.set()

    config = dataset(one_file_slowly)
    both = [threading.Thread(target=make, args=(config, tmp_path / "tiny", say)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(timeout=20)
    assert len(calls) == 1
    assert f"waiting for another process that prepares {tmp_path / 'tiny'}" in messages


def test_disk_space_is_checked_first(dataset, tmp_path):
    with pytest.raises(RuntimeError, match=r"not enough disk space in .*: dataset tiny needs 1,000,000,000,000"):
        make(dataset(one_file, space_bytes=10**18), tmp_path / "tiny", say=print)
    assert not (tmp_path / "tiny").exists()
