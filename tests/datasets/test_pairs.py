import hashlib
import json
from itertools import chain

import pytest

from epochmeter.config import job
from epochmeter.datasets.pairs import COMMA, Language, make, make_word, scan
from epochmeter.datasets.ready import peek_manifest, prepare_dataset

STORAGE = {"name": "here", "root": "data", "medium": None}
LANGUAGE = {"words": 30, "length": 12}


@pytest.fixture
def spec(composed):
    return lambda *typed: job.to_plain(composed("dataset=pairs", *typed))["dataset"]


def lines(folder, split="train"):
    return [line.split("\t") for line in (folder / f"{split}.tsv").read_text().splitlines()]


def clauses(text):
    return [clause.split() for clause in text.split(f" {COMMA} ")]


def test_four_fifths_of_the_pairs_are_for_training(tmp_path):
    facts = make(tmp_path, count=50, seed=0, say=print, **LANGUAGE)
    assert facts == {"splits": {"train": 40, "val": 10}, "source": "generated, seed 0"}
    assert (len(lines(tmp_path)), len(lines(tmp_path, "val"))) == (40, 10)
    assert {path.name for path in tmp_path.iterdir()} == {"train.tsv", "val.tsv"}


def test_words_are_translated_one_to_one_and_clauses_reversed(tmp_path):
    make(tmp_path, count=200, seed=0, say=print, **LANGUAGE)
    meant: dict[str, set[str]] = {}
    for source, target in [*lines(tmp_path), *lines(tmp_path, "val")]:
        there, here = clauses(target)[::-1], clauses(source)
        assert [len(clause) for clause in here] == [len(clause) for clause in there]
        for ours, theirs in zip(chain(*here), chain(*there), strict=True):
            meant.setdefault(ours, set()).add(theirs)
    assert {len(words) for words in meant.values()} == {1}
    assert len({next(iter(words)) for words in meant.values()}) == len(meant)
    assert not meant.keys() & {next(iter(words)) for words in meant.values()}


def test_sentences_and_vocabularies_are_within_limits(tmp_path):
    make(tmp_path, count=500, seed=0, say=print, **LANGUAGE)
    pairs = [*lines(tmp_path), *lines(tmp_path, "val")]
    sizes = [len(source.split()) for source, _ in pairs]
    assert (min(sizes), max(sizes)) == (1, 11), "the end is the twelfth word"
    for side in (0, 1):
        assert len({word for pair in pairs for word in pair[side].split()}) <= 30 - 4


def test_seed_determines_every_byte(tmp_path):
    digests = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / name).mkdir()
        make(tmp_path / name, count=50, seed=seed, say=print, **LANGUAGE)
        digests.append(hashlib.sha256((tmp_path / name / "train.tsv").read_bytes()).hexdigest())
    assert digests[0] == digests[1] != digests[2]
    assert digests[0].startswith("2e9b8ab29e2be99c"), "the same on any machine, by any Python"


def test_word_frequencies_follow_zipfs_law():
    language, counts = Language(words=4, seed=0), {}
    for _ in range(3000):
        for spoken in language.pair(6)[0].replace(COMMA, " ").split():
            counts[spoken] = counts.get(spoken, 0) + 1
    first = counts[make_word(0, "bdfgklmn")]
    for rank in (2, 3, 4):
        assert first / counts[make_word(rank - 1, "bdfgklmn")] == pytest.approx(rank, rel=0.1)


def test_words_are_unique():
    assert len({make_word(index, "bdfgklmn") for index in range(70_000)}) == 70_000


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"count": 4}, r"dataset.count=4: give 5 or more"),
        ({"words": 5}, r"dataset.words=5: give 6 or more"),
        ({"length": 1, "words": 0}, r"dataset.words=0: give 6 or more; dataset.length=1: give 2 or more"),
    ],
)
def test_invalid_arguments_are_rejected(tmp_path, asked, says):
    with pytest.raises(ValueError, match=says):
        make(tmp_path, **{"count": 50, "seed": 0, "say": print, **LANGUAGE, **asked})


def test_lines_of_a_users_folder_are_counted(tmp_path):
    (tmp_path / "train.tsv").write_text("a\tb\nc\td\n")
    (tmp_path / "val.tsv").write_text("a\tb")
    assert scan(tmp_path, say=print) == {"splits": {"train": 2, "val": 1}, "source": str(tmp_path)}


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({"train": "a\tb\n"}, r"has no val.tsv. Add train.tsv and val.tsv"),
        ({}, r"has no train.tsv and no val.tsv"),
        ({"train": "a\tb\n", "val": ""}, r"val.tsv is empty. Add pairs"),
    ],
)
def test_users_folder_without_pairs_is_rejected(tmp_path, written, says):
    for split, text in written.items():
        (tmp_path / f"{split}.tsv").write_text(text)
    with pytest.raises(ValueError, match=says):
        scan(tmp_path, say=print)


def test_pairs_are_created_once_and_identified_by_checksum(spec, tmp_path):
    asked = spec("dataset.count=50")
    said = []
    facts = prepare_dataset(asked, STORAGE, tmp_path, said.append)
    assert (facts["splits"], facts["count"], facts["layout"]) == ({"train": 40, "val": 10}, 50, "memory")
    assert facts["folder"] == str(tmp_path / "data/pairs-50x16-200-0")
    assert not facts.keys() & {"classes", "channels"}
    assert prepare_dataset(asked, STORAGE, tmp_path, said.append)["digest"] == facts["digest"]
    assert len(said) == 1


def test_changes_in_a_users_folder_are_detected(spec, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    for split in ("train", "val"):
        (mine / f"{split}.tsv").write_text("a\tb\n")
    asked = spec(f"dataset.root={mine}")
    first = prepare_dataset(asked, STORAGE, tmp_path, print)
    assert (first["splits"], first["folder"]) == ({"train": 1, "val": 1}, str(mine))
    (mine / "train.tsv").write_text("a\tb\nc\td\n")
    second = prepare_dataset(asked, STORAGE, tmp_path, print)
    assert (second["splits"]["train"], first["digest"] != second["digest"]) == (2, True)
    assert {path.name for path in mine.iterdir()} == {"train.tsv", "val.tsv"}, "nothing is written into it"


def test_polynomial_needs_no_folder(composed, tmp_path):
    asked = job.to_plain(composed("dataset=polynomial", "dataset.count=10"))["dataset"]
    facts = prepare_dataset(asked, STORAGE, tmp_path, print)
    assert (facts["splits"], facts["folder"]) == ({"train": 10, "val": 2}, None)
    assert facts == peek_manifest(asked, STORAGE, tmp_path)
    assert json.dumps(facts)
