"""Training process, started by the controller, on Python 3.6 and torch 1.10 or newer; NumPy is optional."""
