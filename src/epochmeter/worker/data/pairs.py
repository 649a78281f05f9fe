"""Sentence pairs for translation, as word indices."""

import itertools
import os
from array import array
from collections import Counter
from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

import torch

from epochmeter.shared.problem import input_error
from epochmeter.shared.types import Document
from epochmeter.worker.data.faults import REMAKE_HINT, bad_sample_error
from epochmeter.worker.tasks import PAD

START, END, UNKNOWN, SPECIAL_TOKENS = 1, 2, 3, 4
"""Special words of each vocabulary, besides the padding, and their number with it."""


Pair = Sequence[Sequence[int]]
"""Word indices of a source and its target."""


class Pairs:
    """The pairs of `<folder>/<split>.tsv`, one `source<TAB>target` per line, words separated by spaces.

    Each vocabulary has up to `words` words: the special ones and the most frequent of train.tsv, then alphabetically.
    """

    def __init__(self, folder: str, split: str, transform: Callable[[Pair], Any], words: int) -> None:
        if words <= SPECIAL_TOKENS:
            hint = "give more than the {} special words".format(SPECIAL_TOKENS)
            raise input_error("`dataset.words={}` is not valid".format(words), hint, key="dataset.words")
        train = read_pairs(folder, "train")
        vocabularies = [vocabulary(sentences, words) for sentences in zip(*train)]
        self._target_words = {number: word for word, number in vocabularies[1].items()}
        pairs = train if split == "train" else read_pairs(folder, split)
        self._pairs = [tuple(map(word_indices, pair, vocabularies)) for pair in pairs]
        self._transform = transform

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> Any:
        return self._transform(self._pairs[index])

    def target_text(self, numbers: Iterable[int]) -> str:
        """Return the words of a target, up to its end; unknown ones as `<unk>`."""
        sentence = itertools.takewhile(lambda number: number not in (END, PAD), numbers)
        return " ".join(self._target_words.get(number, "<unk>") for number in sentence)


def encode_pair(
    dataset: Document, split: str
) -> Callable[[Pair], Tuple[Tuple[torch.Tensor, torch.Tensor], torch.Tensor]]:
    """Return the preprocessing of a sentence pair: ((source, target shifted right by a start token), target)."""
    length: int = dataset["length"]

    def sample(pair: Pair) -> Tuple[Tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        words, translation = (sentence[: length - 1] for sentence in pair)
        texts = ([*words, END], [START, *translation], [*translation, END])
        source, shifted, target = (torch.tensor(text + [PAD] * (length - len(text))) for text in texts)
        return (source, shifted), target

    return sample


def read_pairs(folder: str, split: str) -> List[List[str]]:
    """Return the pairs of a split's file, as texts; ValueError for an invalid line, RuntimeError without the file."""
    path = os.path.join(folder, split + ".tsv")
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise bad_sample_error(path, error, folder, kind="file") from error
    if not lines:
        hint = "add pairs, one source<TAB>target per line. " + REMAKE_HINT
        raise input_error("{} is empty".format(path), hint, file=path)
    pairs = [line.decode("utf-8", "replace").split("\t") for line in lines]
    for number, texts in enumerate(pairs, 1):
        if len(texts) != 2 or "\ufffd" in "".join(texts):
            message = "{}, line {} is {!r}".format(path, number, "\t".join(texts)[:40])
            raise input_error(message, "write source<TAB>target, with one tab, in UTF-8", file=path)
    return pairs


def vocabulary(sentences: Iterable[str], words: int) -> Dict[str, int]:
    counts = Counter(word for sentence in sentences for word in sentence.split())
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ordered[: words - SPECIAL_TOKENS], SPECIAL_TOKENS)}


def word_indices(sentence: str, numbers: Dict[str, int]) -> "array[int]":
    return array("i", [numbers.get(word, UNKNOWN) for word in sentence.split()])
