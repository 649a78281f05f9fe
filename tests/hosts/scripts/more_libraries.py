"""Loaders of further libraries: a thread that reads ahead, a stateful loader, and one with a single iterator."""

import sys

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

kind = sys.argv[1]
truth = Truth()
model, optimizer = small_model()
unknown = {}
if kind == "prefetch_generator":
    from prefetch_generator import BackgroundGenerator

    unknown = {"data_stall_s": "another thread requests the batches"}
    own = DataLoader(Data(64), 8)
elif kind == "torchdata":
    from torchdata.stateful_dataloader import StatefulDataLoader

    own = StatefulDataLoader(Data(64, truth), 8)
else:
    from timm.data.loader import MultiEpochsDataLoader

    own = MultiEpochsDataLoader(Data(64, truth), 8)
for _ in range(3):
    with truth.window(**unknown):
        for inputs, targets in BackgroundGenerator(own, max_prefetch=2) if unknown else own:
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
truth.write(model)
