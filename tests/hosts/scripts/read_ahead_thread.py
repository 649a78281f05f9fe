"""A thread reads ahead into a queue: the waits of the training loop are not known to a measurement of the loader."""

import queue
import threading

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on


class ReadAhead:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        batches = queue.Queue(2)

        def read():
            for batch in self.loader:
                batches.put(batch)
            batches.put(None)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        yield from iter(batches.get, None)


truth = Truth()
model, optimizer = small_model()
data = Data(64)
loader = ReadAhead(DataLoader(data, 8))
for _ in range(3):
    with truth.window(data_stall_s="another thread requests the batches"):
        for inputs, targets in loader:
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
truth.write(model)
