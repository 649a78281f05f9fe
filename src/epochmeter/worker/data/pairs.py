"""Sentence pairs for translation, as word indices."""

import os
from array import array
from collections import Counter

import torch

from epochmeter.worker.data.faults import REMAKE_HINT, bad_sample_error
from epochmeter.worker.tasks import PAD

START, END, UNKNOWN, SPECIAL_TOKENS = 1, 2, 3, 4
"""Special words of each vocabulary, besides the padding, and their number with it."""


class Pairs:
    """The pairs of `<folder>/<split>.tsv`, one `source<TAB>target` per line, words separated by spaces.

    Each vocabulary has up to `words` words: the special ones and the most frequent of train.tsv, then alphabetically.
    """

    def __init__(self, folder, split, transform, words):
        if words <= SPECIAL_TOKENS:
            raise ValueError("dataset.words={}: give more than the {} special words.".format(words, SPECIAL_TOKENS))
        train = read_pairs(folder, "train")
        vocabularies = [vocabulary(sentences, words) for sentences in zip(*train)]
        pairs = train if split == "train" else read_pairs(folder, split)
        self._pairs = [tuple(map(word_indices, pair, vocabularies)) for pair in pairs]
        self._transform = transform

    def __len__(self):
        return len(self._pairs)

    def __getitem__(self, index):
        return self._transform(self._pairs[index])


def encode_pair(dataset, split):
    """Return the preprocessing of a sentence pair: ((source, target shifted right by a start token), target)."""
    length = dataset["length"]

    def sample(pair):
        source, target = (list(sentence[: length - 1]) for sentence in pair)
        texts = ([*source, END], [START, *target], [*target, END])
        source, shifted, target = (torch.tensor(text + [PAD] * (length - len(text))) for text in texts)
        return (source, shifted), target

    return sample


def read_pairs(folder, split):
    """Return the pairs of a split's file, as texts; ValueError for an invalid line, RuntimeError without the file."""
    path = os.path.join(folder, split + ".tsv")
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise bad_sample_error(path, error, folder, kind="file") from error
    if not lines:
        raise ValueError("{} is empty. Add pairs, one source<TAB>target per line. {}".format(path, REMAKE_HINT))
    pairs = [line.decode("utf-8", "replace").split("\t") for line in lines]
    for number, texts in enumerate(pairs, 1):
        if len(texts) != 2 or "\ufffd" in "".join(texts):
            message = "{}, line {} is {!r}. Write source<TAB>target, with one tab, in UTF-8."
            raise ValueError(message.format(path, number, "\t".join(texts)[:40]))
    return pairs


def vocabulary(sentences, words):
    counts = Counter(word for sentence in sentences for word in sentence.split())
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ordered[: words - SPECIAL_TOKENS], SPECIAL_TOKENS)}


def word_indices(sentence, numbers):
    return array("i", [numbers.get(word, UNKNOWN) for word in sentence.split()])
