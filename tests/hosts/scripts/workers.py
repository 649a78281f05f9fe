"""DataLoader workers by fork, spawn and forkserver, persistent or not; waits are timed around `next`."""

import sys

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

if __name__ == "__main__":
    kind = sys.argv[1]
    truth = Truth()
    model, optimizer = small_model()
    loader = DataLoader(
        Data(64),
        8,
        num_workers=2,
        shuffle=True,
        persistent_workers="persistent" in sys.argv,
        multiprocessing_context=kind,
        worker_init_fn=None,
    )
    for _ in range(3):
        with truth.window():
            with truth.waiting():
                iterator = iter(loader)
            for _ in range(8):
                with truth.waiting():
                    inputs, targets = next(iterator)
                truth.step(len(inputs))
                train_on(model, optimizer, inputs, targets)
            print(next(iterator, None))
    truth.write(model)
