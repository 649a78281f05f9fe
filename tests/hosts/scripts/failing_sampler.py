"""A sampler that raises an error, at once or after some batches; then a complete pass, and at last an error again."""

import contextlib
import sys

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

when, workers = sys.argv[1], int(sys.argv[2])


class Failing:
    failures = 1

    def __len__(self):
        return 64

    def __iter__(self):
        for index in range(64):
            if index == (0 if when == "first" else 40) and self.failures:
                self.failures -= 1
                raise RuntimeError("bad sampler")
            yield index


def waited_for(loader):
    """Yield the batches of a loader, and count the waits for them."""
    with truth.waiting():
        iterator = iter(loader)
    while True:
        with truth.waiting():
            batch = next(iterator)
        yield batch


if __name__ == "__main__":
    truth = Truth()
    model, optimizer = small_model()
    sampler = Failing()
    loader = DataLoader(Data(64), 8, sampler=sampler, num_workers=workers)
    trains = truth.window() if when == "later" else contextlib.nullcontext()
    with trains:
        try:
            for inputs, targets in waited_for(loader):
                truth.step(len(inputs))
                train_on(model, optimizer, inputs, targets)
        except RuntimeError as error:
            print("failed:", error)
    for _ in range(2):
        with truth.window():
            with truth.waiting():
                iterator = iter(loader)
            for _ in range(len(loader)):
                with truth.waiting():
                    inputs, targets = next(iterator)
                truth.step(len(inputs))
                train_on(model, optimizer, inputs, targets)
            print(next(iterator, None))
    truth.write(model)
    sampler.failures = 1
    try:
        for _ in loader:
            pass
    except RuntimeError as error:
        if workers == 0:
            raise
        sys.exit(f"failed: {error}")  # the lines of torch in a traceback depend on which worker is first
