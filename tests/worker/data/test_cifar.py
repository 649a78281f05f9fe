import pytest

from trainmeter.worker.data.cifar import cifar10


def test_a_missing_file_is_said_with_what_to_do(tmp_path):
    with pytest.raises(RuntimeError, match=rf"CIFAR-10's files under {tmp_path} cannot be read: .* Remove that"):
        cifar10(str(tmp_path), "train", transform=None)
