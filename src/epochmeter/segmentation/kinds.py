"""Which passes over data are epochs, which evaluations, and which neither."""

from typing import NamedTuple

from epochmeter.segmentation.passes import Ending, Pass
from epochmeter.segmentation.windows import EPOCH, EVALUATION, step_count

STEPS_RULE = "a pass with optimizer steps"
BACKWARD_RULE = "a pass with backward passes"
READ_AT_ONCE_RULE = "a pass whose batches were all read before the training steps, one per batch"
GIVEN_RULE = "named by the script"
GRADIENTS_RULE = "a pass of a `Meter` with gradients, in a script without an optimizer of torch"
EVALUATION_RULE = "a pass without training after the first epoch"

NO_BATCH = "it delivered no batch"
SINGLE = "the script took one batch of several, and trained on it"
NO_FORWARD = "no forward pass was seen in it"
EARLY = "it was before the first epoch, and did not train"
LOOKED = "it was left after some batches, as if to look at samples"


class CompleteEpoch(NamedTuple):
    """An epoch whose loader had no further batch: its batches, and how many of them were requested in advance."""

    batches: int
    ahead: int


class PassKinds:
    """Names the passes of one process, in the order of their ends, by what happened in it so far.

    Attributes:
        epochs: Number of epochs so far, also of those that are no passes.
        has_optimizer: Whether an optimizer of torch has made a step.
    """

    def __init__(self) -> None:
        self.epochs = 0
        self.has_optimizer = False
        self._has_complete_epoch = False
        self._complete: dict[tuple[int, int], CompleteEpoch] = {}  # the last one by thread and key of the loader
        self._sees_forwards = True  # whether forward passes are seen in passes that train
        self._trained: set[int] = set()  # keys of loaders with an epoch
        self._evaluated: set[int] = set()  # keys of loaders with a complete evaluation
        self._partly_evaluated: set[int] = set()  # keys of loaders with an evaluation of some batches

    def name(self, ended: Pass) -> tuple[str | None, str]:
        """Return the name of a pass's window and the rule; None and a reason if it is no window."""
        if not len(ended.batches):
            return None, NO_BATCH
        if ended.name:
            return ended.name, GIVEN_RULE
        if ended.is_single:
            return None, SINGLE
        if ended.training.steps:
            return EPOCH, READ_AT_ONCE_RULE if ended.is_read_at_once else STEPS_RULE
        if ended.training.backwards and (not self.has_optimizer or ended.loader.key in self._trained):
            return EPOCH, BACKWARD_RULE
        if ended.is_explicit and not self.has_optimizer and ended.has_gradients:
            return EPOCH, GRADIENTS_RULE
        reason = self._no_evaluation(ended)
        return (None, reason) if reason else (EVALUATION, EVALUATION_RULE)

    def is_partial(self, thread: int, ended: Pass) -> bool:
        """Return whether an epoch has fewer steps than complete ones, of which there was one before."""
        if ended.is_continued:
            return True
        if ended.is_piece:
            return ended.ending is not Ending.CUT
        if ended.length is None:
            known = self._complete.get((thread, ended.loader.key))
            steps = step_count(ended) - ended.unused
            return known is not None and not ended.is_complete and steps < known.batches
        return not ended.is_complete and self._has_complete_epoch

    def unused(self, thread: int, ended: Pass) -> int:
        """Return how many batches a script that has left a pass had requested in advance, and has not trained on.

        Their number is that of the batches before the first training, which the script may also have skipped. If no
        complete epoch of the loader shows which it is, one batch was requested in advance, as libraries do.
        """
        if not (ended.training.steps and ended.lag and leaves_last_batches(ended)):
            return 0
        known = self._complete.get((thread, ended.loader.key))
        return ended.lag if ended.lag == (known.ahead if known else 1) else 0

    def note(self, name: str, thread: int, ended: Pass) -> None:
        """Note that a pass is a window of this name."""
        key = ended.loader.key
        if name == EPOCH:
            self.epochs += 1
            self._has_complete_epoch |= ended.is_complete and not ended.is_continued
            if ended.ending is Ending.EXHAUSTED and not (ended.is_continued or ended.is_read_at_once):
                self._complete[thread, key] = CompleteEpoch(len(ended.batches), (ended.lag or 0) if ended.late else 0)
            self._sees_forwards = ended.has_forward or ended.hides_forwards
            self._trained.add(key)
        elif name == EVALUATION:
            (self._evaluated if is_whole(ended) else self._partly_evaluated).add(key)

    def _no_evaluation(self, ended: Pass) -> str:
        """Return why a pass without training is no evaluation; empty if it is one."""
        uses_model = ended.is_explicit or ended.has_forward or ended.hides_forwards
        if ended.is_continued and ended.loader.key in self._partly_evaluated:
            uses_model |= ended.has_untimed  # in these steps, only the first forward pass since `iter` is seen
        if not uses_model and self._sees_forwards:
            return NO_FORWARD
        if not self.epochs:
            return EARLY
        is_look = not is_whole(ended) and (ended.loader.key in self._evaluated or len(ended.batches) == 1)
        return LOOKED if is_look and not ended.is_explicit else ""


def leaves_last_batches(ended: Pass) -> bool:
    """Return whether a pass was left as if with batches that were requested in advance, and not trained on.

    After the first ones, each request is then followed by training on one batch. Scripts that request several batches
    and train on them, that accumulate without backward passes, or that request no batch too many do otherwise.
    """
    count, trained = step_count(ended), ended.trained_batches
    if ended.ending not in (Ending.LEFT, Ending.DROPPED) or not 0 < trained == count - (ended.lag or 0):
        return False
    events = ended.training.backwards or ended.training.steps
    return events < events // trained * count


def is_whole(ended: Pass) -> bool:
    """Return whether a pass has delivered all batches of its loader, from the first one on."""
    return ended.is_complete and not ended.is_continued
