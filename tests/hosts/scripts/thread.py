"""Training in another thread than the main one, and an exception in it."""

import sys
import threading

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

truth = Truth()
model, optimizer = small_model()


def train():
    loader = DataLoader(Data(64, truth), 8)
    for _ in range(3):
        with truth.window():
            for inputs, targets in loader:
                truth.step(len(inputs))
                train_on(model, optimizer, inputs, targets)
    if sys.argv[1:] == ["raise"]:
        raise RuntimeError("in a thread")


thread = threading.Thread(target=train, name="trainer")
thread.start()
thread.join()
truth.write(model)
