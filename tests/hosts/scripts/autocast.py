"""Mixed precision with a gradient scaler, clipping and a learning-rate schedule per step."""

import torch
from torch.utils.data import DataLoader
from truth import Data, Truth, small_model

truth = Truth()
model, optimizer = small_model()
scaler = torch.amp.GradScaler("cpu")
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=24)
loader = DataLoader(Data(64, truth), 8)
for _ in range(3):
    with truth.window():
        for inputs, targets in loader:
            truth.step(len(inputs))
            with torch.autocast("cpu", torch.bfloat16):
                loss = (model(inputs) - targets).float().pow(2).mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
truth.write(model)
