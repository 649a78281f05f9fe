"""A subclass of DataLoader that reads ahead in a thread: its own passes are the epochs, with its own waits."""

import queue
import threading

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on


class ReadAhead(DataLoader):
    def __iter__(self):
        batches, own = queue.Queue(2), super().__iter__()

        def read():
            for batch in own:
                batches.put(batch)
            batches.put(None)

        threading.Thread(target=read, daemon=True).start()
        yield from iter(batches.get, None)


truth = Truth()
model, optimizer = small_model()
loader = ReadAhead(Data(64), 8)
for _ in range(3):
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
