"""A script that has imported torch, and starts itself again with an option of Python, in the same process."""

import os
import sys

folder = os.path.dirname(os.path.abspath(__file__))
paths, option = [folder, *sys.path], sys.argv[1]
if "again" not in sys.argv:
    import torch  # noqa: F401

    os.execv(sys.executable, [sys.executable, option, __file__, option, "again", *filter(None, paths)])
sys.path[:] = [*sys.argv[3:], *sys.path]

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

truth = Truth()
model, optimizer = small_model()
loader = DataLoader(Data(64, truth), 8)
for _ in range(2):
    with truth.window():
        for inputs, targets in loader:
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
print(sys.flags)
truth.write(model)
