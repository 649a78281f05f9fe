"""Loaders of further libraries: a thread that reads ahead, a stateful loader, one with a single iterator, and loaders
that are no DataLoader of torch (fastai, WebDataset).
"""

import sys

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

kind = sys.argv[1]
truth = Truth()
model, optimizer = small_model()
unknown, around = {}, iter
if kind == "prefetch_generator":
    from prefetch_generator import BackgroundGenerator

    unknown = {"data_stall_s": "another thread requests the batches"}
    own, around = DataLoader(Data(64), 8), lambda loader: BackgroundGenerator(loader, max_prefetch=2)
elif kind == "torchdata":
    from torchdata.stateful_dataloader import StatefulDataLoader

    own = StatefulDataLoader(Data(64, truth), 8)
elif kind == "fastai":
    from fastai.data.load import DataLoader as OtherLoader

    own = OtherLoader(Data(64, truth, read_s=0.0005), bs=8)
elif kind == "webdataset":
    import webdataset

    unknown = {"samples": ""}  # its batches may be lists of samples
    data = Data(64, truth, read_s=0.0005)
    own = webdataset.DataPipeline(lambda: (data[number] for number in range(64)), webdataset.batched(8))
else:
    from timm.data.loader import MultiEpochsDataLoader

    own = MultiEpochsDataLoader(Data(64, truth), 8)
for _ in range(3):
    with truth.window(**unknown):
        for inputs, targets in around(own):
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
truth.write(model)
