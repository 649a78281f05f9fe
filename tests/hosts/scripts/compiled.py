"""`torch.compile` of the model, of the step, or of both; its graphs and their breaks are those without."""

import sys
import warnings

import torch
import torch._dynamo.utils
from torch.utils.data import DataLoader
from truth import Data, Truth, small_model

warnings.simplefilter("error")
kind = sys.argv[1]
truth = Truth()
model, optimizer = small_model()
loader, held_out = DataLoader(Data(64, truth), 8), DataLoader(Data(32, truth), 8)
forward, step = model, optimizer.step
if kind == "model":
    forward = torch.compile(model, backend="aot_eager")
elif kind == "step":
    step = torch.compile(optimizer.step, backend="eager")
elif kind == "fullgraph":
    forward = torch.compile(model, backend="eager", fullgraph=True)
elif kind == "inplace":
    model.compile(backend="eager")
for _ in range(3):
    with truth.window():
        for inputs, targets in loader:
            truth.step(len(inputs))
            loss = (forward(inputs) - targets).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            step()
    with truth.window("val"), torch.no_grad():
        for inputs, _ in held_out:
            truth.step(len(inputs))
            forward(inputs)
counters = {name: dict(torch._dynamo.utils.counters[name]) for name in ("graph_break", "stats")}
print(counters)
truth.write(model, **counters)
