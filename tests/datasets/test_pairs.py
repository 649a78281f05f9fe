import hashlib
from itertools import chain

import pytest

from epochmeter.datasets.pairs import COMMA, make, scan

LANGUAGE = {"words": 30, "length": 12}


def lines(folder, split="train"):
    return [line.split("\t") for line in (folder / f"{split}.tsv").read_text().splitlines()]


def clauses(text):
    return [clause.split() for clause in text.split(f" {COMMA} ")]


def test_words_are_translated_one_to_one_and_clauses_reversed(tmp_path):
    facts = make(tmp_path, count=200, seed=0, say=print, **LANGUAGE)
    assert facts == {"splits": {"train": 160, "val": 40}, "source": "generated, seed 0"}
    assert (len(lines(tmp_path)), len(lines(tmp_path, "val"))) == (160, 40)
    translations = {}
    for source, target in [*lines(tmp_path), *lines(tmp_path, "val")]:
        source_clauses, target_clauses = clauses(source), clauses(target)[::-1]
        assert [len(clause) for clause in source_clauses] == [len(clause) for clause in target_clauses]
        for word, translation in zip(chain(*source_clauses), chain(*target_clauses), strict=True):
            assert translations.setdefault(word, translation) == translation
    assert len(set(translations.values())) == len(translations)
    assert not translations.keys() & set(translations.values())


def test_sentences_and_vocabularies_are_within_limits_and_too_few_pairs_are_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"dataset.count=4` is not valid\n  hint: give 5 or more"):
        make(tmp_path, count=4, seed=0, say=print, **LANGUAGE)
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


def test_pairs_of_a_users_folder_are_counted_and_a_missing_or_empty_file_is_rejected(tmp_path):
    (tmp_path / "train.tsv").write_text("a\tb\nc\td\n")
    for _ in ("missing", "empty"):
        with pytest.raises(ValueError, match=r"val.tsv does not exist or is empty\n  hint: add train.tsv and val.tsv"):
            scan(tmp_path, say=print)
        (tmp_path / "val.tsv").touch()
    (tmp_path / "val.tsv").write_text("a\tb\n")
    assert scan(tmp_path, say=print) == {"splits": {"train": 2, "val": 1}, "source": str(tmp_path)}
