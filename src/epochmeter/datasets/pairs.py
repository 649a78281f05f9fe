"""Pairs of sentences of two languages that were made up: one can be learned from the other.

A sentence is of clauses with commas between them. Each word has its own word in the other language, in which the
clauses come in the opposite order. Frequent words are as frequent as Zipf's law has them.
"""

import random
from bisect import bisect
from itertools import accumulate
from pathlib import Path
from typing import Any

from epochmeter.datasets.atomic_folder import Say

SPLITS = ("train", "val")
FOLD = 5
"""Every fifth pair is for validation."""
MARKS = 4
"""Words of a vocabulary that are in no sentence: what fills up, begins, ends, and is unknown."""
COMMA = ","
CLAUSE = 4
"""Words of the longest clause."""
CONSONANTS, VOWELS = {"source": "bdfgklmn", "target": "prstvwxz"}, "aeiou"


def make(folder: Path, count: int, words: int, length: int, seed: int, say: Say) -> dict[str, Any]:
    """Writes train.tsv and val.tsv, `source<TAB>target` a line; ValueError for what cannot be made.

    `words` is of each vocabulary, its marks among them, and `length` of a sentence, its end among them.
    """
    least = {"count": (count, FOLD), "words": (words, MARKS + 2), "length": (length, 2)}
    wrong = [f"dataset.{key}={asked}: give {low} or more" for key, (asked, low) in least.items() if asked < low]
    if wrong:
        raise ValueError("; ".join(wrong) + ".")
    language = Language(words - MARKS - 1, seed)
    lines: dict[str, list[str]] = {split: [] for split in SPLITS}
    for index in range(count):
        source, target = language.pair(length - 1)
        lines["val" if index % FOLD == FOLD - 1 else "train"].append(f"{source}\t{target}\n")
    for split in SPLITS:
        (folder / f"{split}.tsv").write_text("".join(lines[split]), encoding="utf-8")
    splits = {split: len(lines[split]) for split in SPLITS}
    return {"splits": splits, "source": f"generated, seed {seed}"}


def look(folder: Path, say: Say) -> dict[str, Any]:
    """What a user's folder holds: its lines are counted; whether each is a pair, they tell once they are read."""
    missing = [f"{split}.tsv" for split in SPLITS if not (folder / f"{split}.tsv").is_file()]
    if missing:
        raise ValueError(
            f"{folder} has no {' and no '.join(missing)}. Put train.tsv and val.tsv there, source<TAB>target a line, "
            "or give another folder with dataset.root=."
        )
    splits = {}
    for split in SPLITS:
        with open(folder / f"{split}.tsv", "rb") as file:
            splits[split] = sum(1 for _ in file)
        if not splits[split]:
            raise ValueError(f"{folder / split}.tsv is empty. Put pairs there, source<TAB>target a line.")
    return {"splits": splits, "source": str(folder)}


class Language:
    """Sentences of so many words beside the comma, and what they are in the other language."""

    def __init__(self, words: int, seed: int) -> None:
        self._numbers = random.Random(seed)  # only random(), whose stream stays as it is
        self._source = [word(index, CONSONANTS["source"]) for index in range(words)]
        shuffled = sorted((self._numbers.random(), index) for index in range(words))
        self._target = [word(index, CONSONANTS["target"]) for _, index in shuffled]
        self._below = list(accumulate(1 / rank for rank in range(1, words + 1)))

    def pair(self, most: int) -> tuple[str, str]:
        """A sentence of up to `most` words, commas among them, and the same in the other language."""
        clauses = [self._clause(most)]
        left = most - len(clauses[0])
        while left > 1 and self._numbers.random() < 0.7:
            clauses.append(self._clause(left - 1))
            left -= len(clauses[-1]) + 1
        said = [[self._source[index] for index in clause] for clause in clauses]
        meant = [[self._target[index] for index in clause] for clause in reversed(clauses)]
        source, target = (f" {COMMA} ".join(map(" ".join, text)) for text in (said, meant))
        return source, target

    def _clause(self, most: int) -> list[int]:
        count = 1 + int(self._numbers.random() * min(CLAUSE, most))
        drawn = (self._numbers.random() * self._below[-1] for _ in range(count))
        return [bisect(self._below, place) for place in drawn]


def word(index: int, consonants: str) -> str:
    """The word of that number: two syllables, or more where there are many."""
    syllables = [consonant + vowel for consonant in consonants for vowel in VOWELS]
    text = syllables[index % len(syllables)]
    rest = index // len(syllables)
    while rest >= len(syllables):
        text, rest = text + syllables[rest % len(syllables)], rest // len(syllables)
    return text + syllables[rest]
