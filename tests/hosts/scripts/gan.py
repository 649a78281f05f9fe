"""A GAN: two models, two optimizers, two steps per batch, and noise in a `zip` with the loader (`zip`)."""

import itertools
import sys
import time

import torch
from torch.utils.data import DataLoader
from truth import Data, Truth

torch.manual_seed(0)
truth = Truth()
generator, critic = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in (generator, critic)]
loader = DataLoader(Data(64, truth), 8)
for _ in range(3):
    with truth.window():
        noises = (torch.randn(8, 4) for _ in itertools.count())
        for (real, _), noise in (
            zip(loader, noises) if "zip" in sys.argv else ((batch, torch.randn(8, 4)) for batch in loader)
        ):
            truth.step(len(real))
            fake = generator(noise)
            for optimizer in optimizers:
                optimizer.zero_grad()
            (critic(fake.detach()).mean() - critic(real).mean()).backward()
            optimizers[1].step()
            time.sleep(0.002)
            optimizers[0].zero_grad()
            (-critic(fake).mean()).backward()
            optimizers[0].step()
truth.write(generator, critic)
