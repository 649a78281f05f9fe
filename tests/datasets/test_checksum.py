from functools import reduce

import pytest

from epochmeter.datasets import checksum
from epochmeter.datasets.checksum import Checksum, hash_contents, hash_name_and_size, iter_files, sum_files


def test_checksum_is_the_sum_over_all_files_in_several_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(checksum, "FILES_PER_BATCH", 100)
    for number in range(300):
        path = tmp_path / str(number % 3) / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes([number % 256]) * (number % 100))
    reported = []
    total = sum_files(tmp_path, hash_contents, report=reported.append)
    assert total == reduce(Checksum.add, (hash_contents(tmp_path, path) for path in iter_files(tmp_path)))
    assert (total.files, total.bytes) == (300, 3 * 4950)
    assert [done.files for done in reported] == [100, 200, 300]


def test_checksum_covers_names_sizes_and_contents(tmp_path):
    digests = set()
    for name, text in [("a", "1"), ("a", "2"), ("b", "1"), ("b", "11")]:
        (tmp_path / name).write_text(text)
        digests.add(sum_files(tmp_path, hash_contents).digest)
        (tmp_path / name).unlink()
    assert len(digests) == 4


def test_links_are_followed_loops_end_and_a_broken_link_is_an_error(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "real.png").touch()
    (tmp_path / "a" / "linked.png").symlink_to("real.png")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "a" / "loop").symlink_to("..")
    (tmp_path / "a" / "second").symlink_to("../b")
    assert list(iter_files(tmp_path)) == ["a/linked.png", "a/real.png", "b/linked.png", "b/real.png"]
    (tmp_path / "lost.png").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match=r"lost\.png"):
        sum_files(tmp_path, hash_contents)
    lost = sum_files(tmp_path, hash_name_and_size, samples_only=True)
    assert (lost.files, lost.bytes) == (5, 0)
    (tmp_path / "nowhere").touch()  # empty, but it can be read
    found = sum_files(tmp_path, hash_name_and_size, samples_only=True)
    assert (found.files, found.bytes, found.digest == lost.digest) == (5, 0, False)


def test_only_training_files_of_a_users_folder_count(tmp_path):
    for name in ["train/a/1.JPG", "train/a/.hidden.jpg", "train/a/notes.txt", "val/a/2.png", "test/3.png", "all.tar"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list(iter_files(tmp_path, samples_only=True)) == ["train/a/1.JPG", "val/a/2.png"]
