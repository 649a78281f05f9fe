"""Trials of a search, each with new loaders and a new model: one after another, or two at a time in threads.

Of trials at the same time, the record has the epochs of one thread: all of its own, which are complete.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

jobs = int(sys.argv[1])
truth = Truth()
made = [small_model() for _ in range(4)]
is_second, is_half = threading.Event(), threading.Event()  # epoch; of its steps


def trial(number):
    model, optimizer = made[number]
    optimizer.param_groups[0]["lr"] = 0.1 / (1 + number)
    for epoch in range(2):
        with truth.window():
            for inputs, targets in DataLoader(Data(64, truth), 8):
                truth.step(len(inputs))
                if epoch:
                    is_second.set()
                    if truth.open["steps"] == 4:
                        is_half.set()
                loss = train_on(model, optimizer, inputs, targets)
    return loss


def another(number):
    model, optimizer = made[number]
    while not is_half.is_set():
        for inputs, targets in DataLoader(Data(8), 4):
            train_on(model, optimizer, inputs, targets)


for first in range(0, 4, jobs):
    is_second.clear()
    is_half.clear()
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(trial, first)
        if jobs > 1:
            truth.note = "another thread trained at the same time"
            is_second.wait()
            pool.submit(another, first + 1).result()
        one.result()
truth.write()
