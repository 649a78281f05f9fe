"""A dataset that sleeps and computes for known times per batch, in workers or not; it prints what it finds there."""

import sys
import time

from torch.utils.data import DataLoader, get_worker_info
from truth import Data, Truth, small_model, train_on

READ_S, WORK_S, STEPS = 0.02, 0.005, 8


class Slow(Data):
    def __getitems__(self, indices):
        items = super().__getitems__(indices)
        ends = time.thread_time() + WORK_S
        while time.thread_time() < ends:
            pass
        return items


def check(number):
    worker = get_worker_info()
    print(worker.id == number, type(worker.dataset) is Slow, worker.dataset.read_s, flush=True)


if __name__ == "__main__":
    workers = int(sys.argv[1])
    truth = Truth()
    model, optimizer = small_model()
    data = Slow(8 * STEPS, read_s=READ_S)
    loader = DataLoader(data, 8, num_workers=workers, persistent_workers=workers > 0, worker_init_fn=check)
    for _ in range(2):
        with truth.window():
            with truth.waiting():
                iterator = iter(loader)
            for _ in range(STEPS):
                with truth.waiting():
                    inputs, targets = next(iterator)
                truth.step(len(inputs))
                train_on(model, optimizer, inputs, targets)
            truth.open["loader_read_s"] = STEPS * READ_S
            print(next(iterator, None))
        print(loader.dataset is data, loader.worker_init_fn is check, type(loader.collate_fn).__name__, flush=True)
    truth.write(model)
