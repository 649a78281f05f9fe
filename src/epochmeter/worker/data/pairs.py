"""Pairs of sentences, source and target, as the numbers of their words."""

import os
from array import array
from collections import Counter

import torch

from epochmeter.worker.data.faults import REMADE, unreadable
from epochmeter.worker.tasks import PAD

START, END, UNKNOWN = 1, 2, 3
MARKS = 4
"""The first words of each vocabulary: what fills up, begins, ends, and is unknown."""


class Pairs:
    """The pairs of `<folder>/<split>.tsv`, all read at the start: `source<TAB>target` a line, words apart by spaces.

    Each vocabulary has up to `words` words: the marks, and the most frequent of train.tsv, of equal ones those first
    that the alphabet has first. `transform` makes tensors of a pair of arrays of numbers.
    """

    def __init__(self, folder, split, transform, words):
        if words <= MARKS:
            raise ValueError("dataset.words={}: give more than the {} marks.".format(words, MARKS))
        pairs = train = read(folder, "train")
        vocabularies = [vocabulary((pair[side] for pair in train), words) for side in (0, 1)]
        if split != "train":
            pairs = read(folder, split)
        self._pairs = [
            tuple(numbered(sentence, numbers) for sentence, numbers in zip(pair, vocabularies)) for pair in pairs
        ]
        self._transform = transform

    def __len__(self):
        return len(self._pairs)

    def __getitem__(self, index):
        return self._transform(self._pairs[index])


def filled(dataset, split):
    """What makes a pair of sentences the tensors of a sample, each of the dataset's `length`: its preprocessing.

    ((source, target begun by a start), target), source and target with their end, cut or filled up.
    """
    length = dataset["length"]

    def sample(pair):
        source, target = (list(sentence[: length - 1]) for sentence in pair)
        texts = ([*source, END], [START, *target], [*target, END])
        source, begun, target = (torch.tensor(text + [PAD] * (length - len(text))) for text in texts)
        return (source, begun), target

    return sample


def read(folder, split):
    """The pairs of a split's file, as texts; ValueError for what is none, RuntimeError for what cannot be read."""
    path = os.path.join(folder, split + ".tsv")
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise unreadable(path, error, folder, kind="file") from error
    if not lines:
        raise ValueError("{} is empty. Put pairs there, source<TAB>target a line. {}".format(path, REMADE))
    return [pair(line, "{}, line {}".format(path, number)) for number, line in enumerate(lines, 1)]


def pair(line, place):
    """The two texts of a line, which is at `place`."""
    try:
        texts = line.decode("utf-8").split("\t")
    except UnicodeDecodeError as error:
        raise ValueError("{} is not UTF-8: {}. Write it anew as UTF-8.".format(place, error)) from error
    if len(texts) != 2:
        raise ValueError(
            "{} has {} tabs: {!r}. Give source<TAB>target, with one tab.".format(
                place, len(texts) - 1, "\t".join(texts)[:40]
            )
        )
    return texts


def vocabulary(sentences, words):
    """The number of each word."""
    counts = Counter(word for sentence in sentences for word in sentence.split())
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ordered[: words - MARKS], MARKS)}


def numbered(sentence, numbers):
    return array("i", [numbers.get(word, UNKNOWN) for word in sentence.split()])
