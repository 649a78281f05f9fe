"""LeNet-5, for images of 32 x 32 pixels.

LeCun et al., Gradient-based learning applied to document recognition, Proc. IEEE 86(11), 1998; with max pooling
instead of its trained averages.
"""

import torch
from torch import nn


class LeNet(nn.Module):
    """(N, channels, 32, 32) -> (N, classes); with 2 zeros of `padding` around them, images have 28 x 28 pixels."""

    def __init__(self, channels: int, classes: int, activation: str = "Tanh", padding: int = 0) -> None:
        super().__init__()
        activation_class = getattr(nn, activation)
        first, second = nn.Conv2d(channels, 6, 5, padding=padding), nn.Conv2d(6, 16, 5)
        features = [first, activation_class(), nn.MaxPool2d(2), second, activation_class(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*features)
        hidden = [nn.Linear(16 * 5 * 5, 120), activation_class(), nn.Linear(120, 84), activation_class()]
        self.classifier = nn.Sequential(*hidden, nn.Linear(84, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.classifier(torch.flatten(self.features(images), 1))
        return scores
