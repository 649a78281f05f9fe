import pytest
from power.conftest import amd_smi, amd_smi_stub, nvml, nvml_stub, open_folder, other_process  # noqa: F401
from project import put


@pytest.fixture
def tree(tmp_path):
    """Writes files below a root, as a recorded machine has them; gives the root."""
    return lambda **files: put(tmp_path, files)


@pytest.fixture
def board(tree):
    """The root of a Jetson."""
    compatible = "sys/firmware/devicetree/base/compatible"
    return lambda names, **files: tree(**{compatible: names.replace(" ", "\0") + "\0", **files})
