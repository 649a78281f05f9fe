"""Code that the controller and the training process share: Python 3.6, standard library only."""
