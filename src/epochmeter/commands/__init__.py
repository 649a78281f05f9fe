"""The commands, each a module with its help as docstring and a function `main`."""
