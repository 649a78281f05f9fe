"""A user's `sitecustomize`, which imports torch before the script begins."""

import torch  # noqa: F401
