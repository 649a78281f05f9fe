import pytest

from epochmeter.worker.data import torchvision_sets


@pytest.mark.parametrize(("name", "called"), [("mnist", "MNIST"), ("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100")])
def test_missing_file_is_an_error(tmp_path, name, called):
    with pytest.raises(RuntimeError, match=rf"{called}'s files under {tmp_path}: "):
        getattr(torchvision_sets, name)(str(tmp_path), "train", transform=None)
