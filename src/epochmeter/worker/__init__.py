"""The process that trains. Holds to Python 3.6, torch 1.10, torchvision, the standard library; NumPy may be there."""
