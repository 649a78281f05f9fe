import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def single_thread():
    """Small tensors are slower with several threads, above all if tests run in parallel."""
    torch.set_num_threads(1)
