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
    with pytest.raises(ValueError, match=r"dataset.count=4: give 5 or more"):
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


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ({"train": "a\tb\n"}, r"val.tsv does not exist or is empty. Add train.tsv and val.tsv"),
        ({"train": "a\tb\n", "val": ""}, r"val.tsv does not exist or is empty"),
    ],
)
def test_users_folder_without_pairs_is_rejected(tmp_path, files, error):
    for split, text in files.items():
        (tmp_path / f"{split}.tsv").write_text(text)
    with pytest.raises(ValueError, match=error):
        scan(tmp_path, say=print)
