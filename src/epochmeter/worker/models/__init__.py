"""Models: each is a `torch.nn.Module` that its YAML names, for inputs of `channels` and for `classes`."""
