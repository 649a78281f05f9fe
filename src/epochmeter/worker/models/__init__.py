"""Models: `torch.nn.Module`s selected by `_target_` in conf/model."""
