"""Training process, started by the controller.

Supports Python 3.6 and torch 1.10 with torchvision; NumPy is optional.
"""
