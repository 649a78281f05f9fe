"""A dataset some of whose samples are made by child processes or threads, in workers or not."""

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

how, workers = sys.argv[1], int(sys.argv[2])


def forked(index):
    """Return a number that a child process has written."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.write(theirs, str(index).encode())
        os._exit(0)
    os.close(theirs)
    with open(ours) as file:
        number = int(file.read())
    assert os.waitpid(child, 0)[1] == 0
    return number


def threaded(index):
    numbers = []
    thread = threading.Thread(target=lambda: (time.sleep(0.0002), numbers.append(index)))
    thread.start()
    thread.join()
    return numbers[0]


class Helped(Data):
    pool = None

    def item(self, index):
        if index % 8:
            return super().item(index)
        if how == "pool":
            self.pool = self.pool or ThreadPoolExecutor(2)
            return super().item(self.pool.submit(threaded, index).result())
        return super().item({"fork": forked, "thread": threaded}[how](index))


if __name__ == "__main__":
    truth = Truth()
    model, optimizer = small_model()
    loader = DataLoader(Helped(60), 8, num_workers=workers)
    for epoch in range(3):
        with truth.window():
            with truth.waiting():
                iterator = iter(loader)
            for _ in range(len(loader)):
                with truth.waiting():
                    inputs, targets = next(iterator)
                truth.step(len(inputs))
                loss = train_on(model, optimizer, inputs, targets)
            print(next(iterator, None))
        print(epoch, loss)
    truth.write(model)
