from power.conftest import other_process  # noqa: F401
