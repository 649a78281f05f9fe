"""Signals within the loop: handlers that raise, a timer, and Ctrl-C that the script handles."""

import os
import signal

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on


class Stop(Exception):
    pass


def stop(number, frame):
    raise Stop


ticks = []
signal.signal(signal.SIGUSR2, stop)
signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
truth = Truth()
model, optimizer = small_model()
loader = DataLoader(Data(64, truth), 8)
for epoch in range(4):
    try:
        with truth.window(partial=epoch in (1, 2)):
            for number, (inputs, targets) in enumerate(loader):
                truth.step(len(inputs))
                train_on(model, optimizer, inputs, targets)
                if epoch == 1 and number == 4:
                    os.kill(os.getpid(), signal.SIGUSR2)
                if epoch == 2 and number == 5:
                    os.kill(os.getpid(), signal.SIGINT)
    except (Stop, KeyboardInterrupt) as error:
        print("stopped", epoch, type(error).__name__)
signal.setitimer(signal.ITIMER_REAL, 0)
print(len(ticks) > 10)
truth.write(model)
