from functools import reduce
from multiprocessing import active_children

import pytest

from epochmeter.datasets import checksum


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Files enough for several processes."""
    folder = tmp_path_factory.mktemp("many")
    for number in range(3000):
        path = folder / str(number % 3) / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes([number % 256]) * (number % 100))
    return str(folder)


def test_checksum_is_the_sum_of_all_batches(many):
    reported = []
    total = checksum.sum_files(many, checksum.hash_contents, report=reported.append)
    parts = [checksum.hash_contents(many, batch) for batch in checksum.iter_batches(many)]
    assert total == reduce(checksum.Checksum.add, parts)
    assert (total.files, total.bytes) == (3000, 30 * 4950)
    assert 0 < reported[-1].files < 3000


def test_checksum_covers_names_sizes_and_contents(tmp_path):
    digests = set()
    for name, text in [("a", "1"), ("a", "2"), ("b", "1"), ("b", "11")]:
        (tmp_path / name).write_text(text)
        digests.add(checksum.sum_files(str(tmp_path), checksum.hash_contents).digest)
        (tmp_path / name).unlink()
    assert len(digests) == 4


def fail(top, batch):
    raise OSError(28, "No space left on device")


def test_error_in_a_process_is_raised_and_ends_all(many):
    with pytest.raises(OSError, match="No space left"):
        checksum.sum_files(many, fail)
    assert not active_children()


def test_large_folder_is_listed_in_parts(many, monkeypatch):
    """Memory does not grow with the files of one folder: batches come before all of it is listed."""
    monkeypatch.setattr(checksum, "MAX_SORTED", 100)
    batches = [batch.names for batch in checksum.iter_batches(many)]
    assert max(map(len, batches)) == 100
    assert sorted(name for names in batches for name in names) == sorted(f"{number}.png" for number in range(3000))


def test_links_are_followed_loops_end_and_a_broken_link_is_an_error(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "real.png").touch()
    (tmp_path / "a" / "linked.png").symlink_to("real.png")
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "b").symlink_to("a")
    assert sorted(checksum.iter_files(str(tmp_path))) == ["a/linked.png", "a/real.png", "b/linked.png", "b/real.png"]
    (tmp_path / "lost.png").symlink_to("nowhere")
    with pytest.raises(RuntimeError, match=f"{tmp_path}/lost.png is neither"):
        list(checksum.iter_files(str(tmp_path)))


def test_only_training_files_of_a_users_folder_count(tmp_path):
    for name in ["train/a/1.JPG", "train/a/.hidden.jpg", "train/a/notes.txt", "val/a/2.png", "test/3.png", "all.tar"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(checksum.iter_files(str(tmp_path), images=True)) == ["train/a/1.JPG", "val/a/2.png"]
