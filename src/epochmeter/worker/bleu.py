"""BLEU of a trained model's translations: Papineni et al., ACL 2002, computed by sacrebleu (Post, WMT 2018).

The validation sources are translated greedily: each word is the most likely one after the words before it. BLEU is of
the words as they are in the dataset (sacrebleu's tokenizer `none`), with subwords joined.
"""

import sys
from typing import Any, Callable, Dict, List, Union

import torch
from torch.utils.data.dataloader import default_collate

from epochmeter.shared.problem import input_error
from epochmeter.shared.types import Document
from epochmeter.worker.data.pairs import END, START, Pairs, encode_pair, read_pairs
from epochmeter.worker.strategy import Single
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


class BleuError(RuntimeError):
    """A rank could not translate its part."""


def measure_bleu(
    translate: Translate,
    dataset: Document,
    folder: str,
    batch: int,
    strategy: Single,
    note: Callable[[int, int], object] = lambda translated, sentences: None,
) -> float:
    """Return the BLEU, 0 to 100, of the translations of the validation sources, of which each rank makes a part.

    Args:
        translate: The model, which is the same in all ranks.
        dataset: The dataset of the job.
        folder: Its folder.
        batch: Number of sentences that are translated at a time.
        strategy: Of the training.
        note: Called after each batch with the number of translated sentences, assuming equally fast ranks, and of all.

    Raises:
        BleuError: A rank failed, in all ranks, such as no memory for a whole batch; or scoring failed.
    """
    own: Union[Dict[int, List[str]], str] = {}
    try:
        pairs = Pairs(folder, "val", encode_pair(dataset, "val"), dataset["words"])
        own = _translated(translate, pairs, batch, strategy, note)
    except Exception as error:  # the other ranks wait for this one
        own = _describe(error)
    translations: Dict[int, List[str]] = {}
    for part in strategy.all_gather(own):
        if isinstance(part, str):
            raise BleuError(part)
        translations.update(part)
    hypotheses = [text for begin in sorted(translations) for text in translations[begin]]
    try:
        return _score(hypotheses, [target for _, target in read_pairs(folder, "val")])
    except Exception as error:
        raise BleuError(_describe(error)) from error


def _describe(error: Exception) -> str:
    return "{}: {}".format(type(error).__name__, error)


def _translated(
    translate: Translate, pairs: Pairs, batch: int, strategy: Single, note: Callable[[int, int], object]
) -> Dict[int, List[str]]:
    """Return the translations of this rank's batches, by the number of each batch's first sentence."""
    translations: Dict[int, List[str]] = {}
    for begin in range(batch * strategy.rank, len(pairs), batch * strategy.ranks):
        samples = [pairs[index] for index in range(begin, min(begin + batch, len(pairs)))]
        (sources, _), _ = default_collate(samples)
        translations[begin] = [pairs.target_text(words) for words in translate(sources).tolist()]
        note(min(begin + batch * strategy.ranks, len(pairs)), len(pairs))
    return translations


def _score(translations: List[str], references: List[str]) -> float:
    import sacrebleu

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
