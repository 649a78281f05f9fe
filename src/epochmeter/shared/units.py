"""Units that the controller and the training process share."""

NANOSECOND = 1e-9
"""In seconds."""
