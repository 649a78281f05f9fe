"""os.fork in a pass: the child reads data and ends (`reads`), or trains while its parent waits (`trains`)."""

import os
import sys

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

kind = sys.argv[1]
truth = Truth("another one trained too" if kind == "trains" else "")
model, optimizer = small_model()
loader = DataLoader(Data(64, truth), 8)
for epoch in range(3):
    with truth.window():
        for number, (inputs, targets) in enumerate(loader):
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
            if epoch == 1 and number == 4:
                child = os.fork()
                if not child:
                    truth.open = None
                    for inputs, targets in DataLoader(Data(16), 8):
                        if kind == "trains":
                            train_on(model, optimizer, inputs, targets)
                    os._exit(0)
                print(os.waitpid(child, 0)[1])
truth.write(model)
