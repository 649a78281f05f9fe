import pytest
import torch
from torch.amp import GradScaler

from epochmeter.datasets.pairs import make
from epochmeter.worker.data.faults import StorageGoneError
from epochmeter.worker.data.loader import make_loaders
from epochmeter.worker.data.pairs import Pairs, encode_pair
from epochmeter.worker.loop import EpochStats, evaluate, train
from epochmeter.worker.models.seq2seq import Seq2Seq
from epochmeter.worker.models.transformer import Transformer
from epochmeter.worker.precision import NullContext
from epochmeter.worker.strategy import Single
from epochmeter.worker.tasks import Translation

TRAIN = "b a b\tx y\na a b\tz\n"
PAD, START, END, UNKNOWN = 0, 1, 2, 3


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.tsv").write_text(TRAIN)
    (tmp_path / "val.tsv").write_text("b new\tx x\n")
    return tmp_path


def samples(folder, split="train", words=10, length=5):
    return Pairs(str(folder), split, encode_pair({"length": length}, split), words)


def to_lists(sample):
    (source, shifted), target = sample
    return source.tolist(), shifted.tolist(), target.tolist()


def test_pair_becomes_padded_source_shifted_target_and_target(folder):
    # a and b are as frequent: a is 4, b 5; of the targets x is 4, y 5, z 6
    assert to_lists(samples(folder)[0]) == ([5, 4, 5, END, PAD], [START, 4, 5, PAD, PAD], [4, 5, END, PAD, PAD])
    assert to_lists(samples(folder)[1]) == ([4, 4, 5, END, PAD], [START, 6, PAD, PAD, PAD], [6, END, PAD, PAD, PAD])
    assert to_lists(samples(folder, length=2)[0]) == ([5, END], [START, 4], [4, END])
    assert to_lists(samples(folder, words=5)[0])[0] == [UNKNOWN, 4, UNKNOWN, END, PAD]
    (validation,) = samples(folder, "val")
    assert to_lists(validation) == ([5, UNKNOWN, END, PAD, PAD], [START, 4, 4, PAD, PAD], [4, 4, END, PAD, PAD])


def test_invalid_line_is_reported_with_its_number_and_an_unreadable_file_is_an_error(folder):
    for content, error in (
        (b"a\tb\na b\n", r"train.tsv, line 2 is 'a b'\n  hint: write source<TAB>target"),
        (b"a\tb\tc\n", r"train.tsv, line 1 is "),
        (b"a\tb\n\n", r"train.tsv, line 2 is ''"),
        (b"a\tb\nc\td\n\xff\tb\n", r"train.tsv, line 3 is .*\n  hint: .*UTF-8"),
        (b"", r"train.tsv is empty"),
    ):
        (folder / "train.tsv").write_bytes(content)
        with pytest.raises(ValueError, match=error):
            samples(folder)
    (folder / "train.tsv").unlink()
    with pytest.raises(RuntimeError, match=r"cannot read file .*train.tsv: "):
        samples(folder)
    with pytest.raises(StorageGoneError):
        samples(folder / "unmounted")


@pytest.mark.parametrize("kind", ["transformer", "seq2seq"])
def test_model_learns_the_generated_language(composed, tmp_path, kind):
    """Accuracy becomes far better than that of always predicting the most frequent word."""
    make(tmp_path, count=300, words=16, length=6, seed=0, say=print)
    task = Translation()
    job = dict(composed("dataset=pairs", "workers=0", "batch=20", "dataset.length=6", "dataset.words=16"))
    training, validation = make_loaders(job, {"folder": str(tmp_path)}, task, Single(1), cuda=False)
    torch.manual_seed(0)
    model = Transformer(16, 6, 32, 4, 1, 64, 0) if kind == "transformer" else Seq2Seq(16, "gru", 32, 1, 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    assert accuracy(model, task, validation) < 0.2
    for _ in range(8):
        train(model, training, task, optimizer, EpochStats(task), NullContext(), GradScaler(enabled=False))
    assert accuracy(model, task, validation) > 0.6


def accuracy(model, task, batches):
    stats = EpochStats(task)
    evaluate(model, batches, task, stats, NullContext())
    return stats.totals().correct / stats.totals().weight
