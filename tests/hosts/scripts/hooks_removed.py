"""The script removes the hooks of others after the first epoch: those of modules, optimizers or the collector."""

import gc
import sys

import torch
from torch.nn.modules import module
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

OF_MODULES = [module._global_forward_hooks, module._global_forward_pre_hooks, module._global_backward_hooks]
OF_OPTIMIZERS = [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
HOOKS = {"modules": OF_MODULES, "optimizers": OF_OPTIMIZERS, "collector": [gc.callbacks]}[sys.argv[1]]

truth = Truth()
model, optimizer = small_model()
loader, held_out = DataLoader(Data(60, truth), 8, shuffle=True), DataLoader(Data(32, truth), 4)
for epoch in range(3):
    with truth.window():
        for inputs, targets in loader:
            truth.step(len(inputs))
            loss = train_on(model, optimizer, inputs, targets)
            if epoch:
                for hooks in HOOKS:
                    hooks.clear()
    with truth.window("val"), torch.no_grad():
        for inputs, _ in held_out:
            truth.step(len(inputs))
            model(inputs)
    gc.collect()
    print(epoch, loss, [len(hooks) for hooks in HOOKS] if epoch else "")
truth.write(model)
