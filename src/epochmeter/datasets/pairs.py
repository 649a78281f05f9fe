"""Generated sentence pairs of two artificial languages, one of which can be learned from the other.

A sentence consists of clauses separated by commas. Each word has a fixed translation, and the clauses are in reverse
order in the other language. Word frequencies follow Zipf's law.
"""

import random
from bisect import bisect
from itertools import accumulate
from pathlib import Path

from epochmeter.datasets.manifest import Facts
from epochmeter.datasets.progress import Notify
from epochmeter.shared.problem import input_error

SPLITS = ("train", "val")
VAL_EVERY = 5  # every fifth pair is for validation
SPECIAL_TOKENS = 4  # words of a vocabulary that no sentence contains: padding, start, end and unknown
COMMA = ","
MAX_CLAUSE_WORDS = 4
CONSONANTS, VOWELS = {"source": "bdfgklmn", "target": "prstvwxz"}, "aeiou"


def make(folder: Path, count: int, words: int, length: int, seed: int, say: Notify) -> Facts:
    """Write train.tsv and val.tsv: vocabularies of `words` words with special ones, up to `length` per sentence."""
    if count < VAL_EVERY:
        raise input_error(f"`dataset.count={count}` is not valid", f"give {VAL_EVERY} or more", key="dataset.count")
    language = Language(words - SPECIAL_TOKENS - 1, seed)
    lines: dict[str, list[str]] = {split: [] for split in SPLITS}
    for index in range(count):
        source, target = language.pair(length - 1)
        lines["val" if index % VAL_EVERY == VAL_EVERY - 1 else "train"].append(f"{source}\t{target}\n")
    for split in SPLITS:
        (folder / f"{split}.tsv").write_text("".join(lines[split]), encoding="utf-8")
    splits = {split: len(lines[split]) for split in SPLITS}
    return {"splits": splits, "source": f"generated, seed {seed}"}


def scan(folder: Path, say: Notify) -> Facts:
    """Count the lines of a user's train.tsv and val.tsv; the pairs themselves are checked when they are read."""
    splits = {}
    for split in SPLITS:
        path = folder / f"{split}.tsv"
        if not path.is_file() or not path.stat().st_size:
            raise input_error(
                f"{path} does not exist or is empty",
                "add train.tsv and val.tsv, one source<TAB>target per line, or set dataset.root= to another folder",
            )
        with open(path, "rb") as file:
            splits[split] = sum(1 for _ in file)
    return {"splits": splits, "source": str(folder)}


class Language:
    """Generator of sentences with `words` words and the comma, and of their translations."""

    def __init__(self, words: int, seed: int) -> None:
        self._numbers = random.Random(seed)  # only random(), whose stream is stable between versions
        self._source = [make_word(index, CONSONANTS["source"]) for index in range(words)]
        shuffled = sorted((self._numbers.random(), index) for index in range(words))
        self._target = [make_word(index, CONSONANTS["target"]) for _, index in shuffled]
        self._below = list(accumulate(1 / rank for rank in range(1, words + 1)))

    def pair(self, max_words: int) -> tuple[str, str]:
        """Return a sentence of up to `max_words` words, including commas, and its translation."""
        clauses = [self._clause(max_words)]
        remaining = max_words - len(clauses[0])
        while remaining > 1 and self._numbers.random() < 0.7:
            clauses.append(self._clause(remaining - 1))
            remaining -= len(clauses[-1]) + 1
        source_words = [[self._source[index] for index in clause] for clause in clauses]
        target_words = [[self._target[index] for index in clause] for clause in reversed(clauses)]
        source, target = (f" {COMMA} ".join(map(" ".join, text)) for text in (source_words, target_words))
        return source, target

    def _clause(self, max_words: int) -> list[int]:
        count = 1 + int(self._numbers.random() * min(MAX_CLAUSE_WORDS, max_words))
        drawn = (self._numbers.random() * self._below[-1] for _ in range(count))
        return [bisect(self._below, number) for number in drawn]


def make_word(index: int, consonants: str) -> str:
    """Return the word of an index: two syllables, or more for large indices."""
    syllables = [consonant + vowel for consonant in consonants for vowel in VOWELS]
    text = syllables[index % len(syllables)]
    rest = index // len(syllables)
    while rest >= len(syllables):
        text, rest = text + syllables[rest % len(syllables)], rest // len(syllables)
    return text + syllables[rest]
