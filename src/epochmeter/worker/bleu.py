"""BLEU of a trained model's translations: Papineni et al., ACL 2002, computed by sacrebleu (Post, WMT 2018).

The validation sources are translated greedily: each word is the most likely one after the words before it. BLEU is of
the words as they are in the dataset (sacrebleu's tokenizer `none`), with subwords joined.
"""

import sys
from typing import Any, Callable, List

import torch
from torch.utils.data.dataloader import default_collate

from epochmeter.shared.problem import input_error
from epochmeter.shared.types import Document
from epochmeter.worker.data.pairs import END, START, Pairs, encode_pair, read_pairs
from epochmeter.worker.tasks import PAD

Translate = Callable[[torch.Tensor], torch.Tensor]
"""Returns the translations of (N, length) sources, on any device."""
PAIRS = Pairs.__module__ + "." + Pairs.__name__
SUBWORD = "@@ "  # ends a part of a word that continues, as subword-nmt writes it


def check_bleu(dataset: Document) -> None:
    """Refuse BLEU before training if it could not be computed afterwards."""
    opened = dataset["open"] or {}
    if PAIRS not in (opened.get("_target_"), opened.get(dataset["layout"], {}).get("_target_")):
        message = "`task.bleu=true` needs texts, and dataset={} has none".format(dataset["name"])
        raise input_error(message, "give `dataset=iwslt15`, `wmt16` or `pairs`, or `task.bleu=false`", key="task.bleu")
    try:
        import sacrebleu  # noqa: F401  # only whether it is installed
    except ImportError as error:
        hint = "install it, `{} -m pip install sacrebleu`, or give `task.bleu=false`".format(sys.executable)
        raise input_error("`task.bleu=true` needs sacrebleu: {}".format(error), hint, key="task.bleu") from error


def measure_bleu(translate: Translate, dataset: Document, folder: str, batch: int) -> float:
    """Return the BLEU, 0 to 100, of the translations of the validation sources in batches of this size."""
    import sacrebleu

    pairs = Pairs(folder, "val", encode_pair(dataset, "val"), dataset["words"])
    translations: List[str] = []
    for begin in range(0, len(pairs), batch):
        samples = [pairs[index] for index in range(begin, min(begin + batch, len(pairs)))]
        (sources, _), _ = default_collate(samples)
        translations += [pairs.target_text(words) for words in translate(sources).tolist()]
    references = [target for _, target in read_pairs(folder, "val")]
    texts = ([_join_subwords(text) for text in side] for side in (translations, references))
    hypotheses, expected = texts
    return float(sacrebleu.corpus_bleu(hypotheses, [expected], tokenize="none", force=True).score)


@torch.no_grad()
def translate_greedily(model: Callable[[Any], torch.Tensor], sources: torch.Tensor) -> torch.Tensor:
    """Return the most likely words one after another, each (N, length): after the end of a sentence, padding.

    The model is one of `Translation`: it returns scores of words for (source, target shifted right by a start token).
    """
    count, length = sources.shape
    words = torch.full((count, length + 1), PAD, dtype=sources.dtype, device=sources.device)
    words[:, 0] = START
    has_ended = torch.zeros(count, dtype=torch.bool, device=sources.device)
    for position in range(length):
        scores = model((sources, words[:, : position + 1]))
        best = scores[:, position].argmax(1)
        words[:, position + 1] = best.masked_fill(has_ended, PAD)
        has_ended |= best == END
        if has_ended.all():
            break
    return words[:, 1:]


def _join_subwords(text: str) -> str:
    return (text + " ").replace(SUBWORD, "").strip()
