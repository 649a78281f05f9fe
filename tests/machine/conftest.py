import pytest
from power.conftest import amd_smi, nvml, nvml_stub, open_folder, other_process  # noqa: F401


@pytest.fixture
def tree(tmp_path):
    """Writes files below a root, as a recorded machine has them; gives the root."""

    def written(**files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return written


@pytest.fixture
def board(tree):
    """The root of a Jetson."""

    def written(names, **files):
        compatible = "".join(name + "\0" for name in names)
        return tree(**{"sys/firmware/devicetree/base/compatible": compatible, **files})

    return written
