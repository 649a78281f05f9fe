"""LeNet-5, for 32 x 32 pixels.

LeCun et al., Gradient-based learning applied to document recognition, Proc. IEEE 86(11), 1998; with ReLU and max
pooling, as the edge study trains it.
"""

import torch
from torch import nn


class LeNet(nn.Module):
    """(N, channels, 32, 32) -> (N, classes)."""

    def __init__(self, channels, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(16 * 5 * 5, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )

    def forward(self, images):
        return self.classifier(torch.flatten(self.features(images), 1))
