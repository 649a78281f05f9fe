import sys
from types import ModuleType

import pytest
import torch

from epochmeter.datasets.pairs import make
from epochmeter.worker.bleu import BleuError, check_bleu, measure_bleu, translate_greedily
from epochmeter.worker.data.pairs import END, START, Pairs, encode_pair
from epochmeter.worker.models.seq2seq import Seq2Seq
from epochmeter.worker.models.transformer import Transformer
from epochmeter.worker.strategy import Single
from epochmeter.worker.tasks import PAD

A, B, C = 4, 5, 6  # the first words after the special ones
PAIRS = {"_target_": "epochmeter.worker.data.pairs.Pairs"}
DATASET = {"name": "pairs", "layout": "memory", "open": {"memory": PAIRS}, "words": 10, "length": 5}


def copying(inputs):
    """A model that repeats the source."""
    sources, shifted = inputs
    return torch.nn.functional.one_hot(sources[:, : shifted.shape[1]], 10).float()


def test_translation_ends_with_each_sentence_and_is_fed_back_word_by_word():
    sources = torch.tensor([[A, B, END, C, C], [C, END, A, A, A]])
    seen = []
    words = translate_greedily(lambda inputs: seen.append(inputs[1].clone()) or copying(inputs), sources)
    assert words.tolist() == [[A, B, END, PAD, PAD], [C, END, PAD, PAD, PAD]]
    assert [shifted.tolist() for shifted in seen[1:]] == [[[START, A], [START, C]], [[START, A, B], [START, C, END]]]
    endless = translate_greedily(copying, torch.full((1, 5), A))
    assert endless.tolist() == [[A] * 5]


@pytest.mark.parametrize("kind", ["transformer", "seq2seq"])
def test_both_models_predict_a_word_from_those_before_it_only(kind):
    torch.manual_seed(0)
    model = (Transformer(16, 6, 32, 4, 1, 64, 0) if kind == "transformer" else Seq2Seq(16, "lstm", 32, 1, 0)).eval()
    sources = torch.randint(4, 16, (3, 6))
    words = translate_greedily(model, sources)
    shifted = torch.cat([torch.full((3, 1), START), words[:, :-1]], dim=1)
    with torch.no_grad():
        expected = model((sources, shifted)).argmax(2)
    before_end = (words == END).cumsum(1) - (words == END).long() == 0
    assert (words[before_end] == expected[before_end]).all()


@pytest.fixture
def folder(tmp_path):
    """Pairs whose targets are their sources, in subwords."""
    for split in ("train", "val"):
        (tmp_path / f"{split}.tsv").write_text("a@@ b c d\ta@@ b c d\nc d c d\tc d c d\n")
    return str(tmp_path)


def test_score_of_a_perfect_translation_is_100_and_of_another_less(folder):
    pytest.importorskip("sacrebleu")
    copy = Pairs(folder, "val", encode_pair(DATASET, "val"), 10)
    assert copy.target_text([*copy._pairs[0][1], END, A]) == "a@@ b c d"
    assert measure_bleu(lambda sources: sources, DATASET, folder, 1, Single(1)) == pytest.approx(100)
    assert measure_bleu(lambda sources: sources.flip(1), DATASET, folder, 2, Single(1)) < 50


def test_score_is_that_of_sacrebleu_for_the_joined_words(folder):
    sacrebleu = pytest.importorskip("sacrebleu")
    first = torch.tensor([[A + 3, END, PAD, PAD, PAD]])  # translates all into one word
    word = Pairs(folder, "val", encode_pair(DATASET, "val"), 10).target_text([A + 3])
    expected = sacrebleu.corpus_bleu([word.replace("@@", "")] * 2, [["ab c d", "c d c d"]], tokenize="none").score
    assert measure_bleu(lambda sources: first.repeat(len(sources), 1), DATASET, folder, 2, Single(1)) == pytest.approx(
        expected
    )


class Ranked(Single):
    """A rank whose `all_gather` returns what the ranks before it have given, and its own."""

    def __init__(self, rank, ranks, given):
        super().__init__(ranks)
        self.rank, self._given = rank, given

    def all_gather(self, value):
        self._given.append(value)
        return [*self._given]


def test_ranks_translate_a_part_each_and_note_how_far_they_are(folder):
    pytest.importorskip("sacrebleu")
    given, noted = [], []
    assert measure_bleu(lambda sources: sources, DATASET, folder, 1, Ranked(1, 2, given), lambda *_: None) < 100
    both = Ranked(0, 2, given)
    assert measure_bleu(lambda sources: sources, DATASET, folder, 1, both, lambda *so: noted.append(so)) == (
        pytest.approx(100)
    )
    assert [sorted(part) for part in given] == [[1], [0]]
    assert noted == [(2, 2)]


def test_failure_of_any_rank_is_the_reason_on_all(folder):
    def fail(sources):
        raise MemoryError("no room")

    for given in ([], ["MemoryError: no room"]):
        with pytest.raises(BleuError, match=r"^MemoryError: no room$"):
            measure_bleu(fail if not given else lambda sources: sources, DATASET, folder, 1, Ranked(0, 2, given))


def test_unreadable_pairs_and_a_failed_scorer_end_neither_the_training_nor_the_other_ranks(folder, monkeypatch):
    given = []
    with pytest.raises(BleuError, match=r"^StorageGoneError: "):
        measure_bleu(lambda sources: sources, DATASET, folder + "/none", 1, Ranked(0, 2, given))
    assert len(given) == 1, "the other ranks are told"
    scorer = ModuleType("sacrebleu")
    monkeypatch.setitem(sys.modules, "sacrebleu", scorer)
    with pytest.raises(BleuError, match=r"^AttributeError: .*corpus_bleu"):
        measure_bleu(lambda sources: sources, DATASET, folder, 1, Single(1))


def test_score_that_could_not_be_computed_is_refused_before_training(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ValueError, match=r"needs sacrebleu: .*\n  hint: install it, `\S+ -m pip install sacrebleu`"):
        check_bleu(DATASET)
    for opened in (None, {"files": {"_target_": "mine.Images"}, "memory": {"_target_": "mine.Texts"}}):
        with pytest.raises(ValueError, match=r"dataset=mine has none\n  hint: give `dataset=iwslt15`"):
            check_bleu({**DATASET, "name": "mine", "open": opened})


@pytest.mark.parametrize("model", ["transformer", "seq2seq"])
def test_trained_models_translate_the_generated_language(composed, tmp_path, model):
    """Better than an untrained model, by BLEU."""
    pytest.importorskip("sacrebleu")
    from torch.amp import GradScaler

    from epochmeter.worker.data.loader import make_loaders
    from epochmeter.worker.loop import EpochStats, train
    from epochmeter.worker.precision import NullContext
    from epochmeter.worker.tasks import Translation

    make(tmp_path, count=300, words=16, length=6, seed=0, say=print)
    job = dict(composed("dataset=pairs", "workers=0", "batch=20", "dataset.length=6", "dataset.words=16"))
    training, _ = make_loaders(job, {"folder": str(tmp_path)}, Translation(), Single(1), cuda=False)
    torch.manual_seed(0)
    net = Transformer(16, 6, 32, 4, 1, 64, 0) if model == "transformer" else Seq2Seq(16, "gru", 32, 1, 0)

    def score():
        net.eval()
        return measure_bleu(
            lambda sources: translate_greedily(net, sources), job["dataset"], str(tmp_path), 20, Single(1)
        )

    optimizer, task, before = torch.optim.Adam(net.parameters(), lr=5e-3), Translation(), score()
    for _ in range(8):
        train(net, training, task, optimizer, EpochStats(task), NullContext(), GradScaler(enabled=False))
    assert score() > before + 20
