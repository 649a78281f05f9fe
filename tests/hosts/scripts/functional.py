"""Models within `functional_call` and `vmap`, gradients by `torch.func`, and a training without any module."""

import sys

import torch
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.utils.data import DataLoader
from truth import Data, Truth, small_model

kind = sys.argv[1]
truth = Truth()
model, _ = small_model()
model.eval()  # dropout within `vmap` needs a kind of randomness
if kind == "vmap":
    members = [torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)) for _ in range(3)]
    weights, buffers = stack_module_state(members)
    weights = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
elif kind == "tensors":
    weights = {"weight": torch.zeros(8, 1, requires_grad=True), "bias": torch.zeros(1, requires_grad=True)}
else:
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
optimizer = torch.optim.Adam(weights.values(), lr=0.01)


def outputs_of(weights, inputs):
    if kind == "vmap":
        return vmap(lambda member: functional_call(members[0], member, (inputs,)))(weights)
    if kind == "tensors":
        return inputs @ weights["weight"] + weights["bias"]
    return functional_call(model, weights, (inputs,))


def loss_of(weights, inputs, targets):
    return (outputs_of(weights, inputs) - targets).pow(2).mean()


for epoch in range(3):
    with truth.window():
        for inputs, targets in DataLoader(Data(60, truth), 8):
            truth.step(len(inputs))
            optimizer.zero_grad()
            loss = loss_of(weights, inputs, targets)
            if kind == "sample_grads":
                found = vmap(grad(loss_of), (None, 0, 0))(weights, inputs, targets)
                for name, weight in weights.items():
                    weight.grad = found[name].mean(0)
            else:
                loss.backward()
            optimizer.step()
    print(epoch, loss.item())
truth.write(*weights.values())
