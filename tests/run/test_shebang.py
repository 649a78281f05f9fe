"""The first line of a script."""

import pytest

from epochmeter.run.shebang import Shebang, read_shebang


@pytest.mark.parametrize(
    ("line", "shebang"),
    [
        ("#!/opt/python3.11", Shebang("/opt/python3.11", [])),
        ("#!  /opt/python -u -X dev  ", Shebang("/opt/python", ["-u", "-X", "dev"])),
        ("#!/opt/python\t-u", Shebang("/opt/python", ["-u"])),
        ("#!/opt/python\r", Shebang("/opt/python", [])),
        ("#!/usr/bin/env python3", Shebang("python3", [])),
        ("#!/usr/bin/env python3\r", Shebang("python3", [])),
        ("#!/usr/bin/env python3 -u", Shebang("python3 -u", [])),
        ("#!/usr/bin/env -S python3 -u", Shebang("python3", ["-u"])),
        ("#!/usr/bin/env -Spython3 -u", Shebang("python3", ["-u"])),
        ("#!/usr/bin/env --split-string=python3 'a b'", Shebang("python3", ["a b"])),
        ("#!/usr/bin/env -S -i A=1 python3", Shebang("python3", ["-i", "A=1"])),
        ("#!/usr/bin/env -S python3 'x", None),
        ("#!/usr/bin/env", None),
        ("#!", None),
        ("# no first line", None),
        ("", None),
    ],
)
def test_interpreter_and_options_are_read_as_linux_and_env_read_them(tmp_path, line, shebang):
    (tmp_path / "own.py").write_bytes(f"{line}\nprint()\n".encode())
    assert read_shebang(str(tmp_path / "own.py")) == shebang


def test_bytes_that_are_no_text_and_a_missing_file_are_no_error(tmp_path):
    (tmp_path / "own.py").write_bytes(b"#!/opt/\xff/python\n")
    found = read_shebang(str(tmp_path / "own.py"))
    assert found.is_python
    assert read_shebang(str(tmp_path / "missing.py")) is None


@pytest.mark.parametrize(
    ("interpreter", "is_python"),
    [("/opt/python3.11", True), ("pypy3", True), ("python3-dbg", True), ("/bin/sh", False), ("/opt/python/run", False)],
)
def test_interpreter_is_one_of_python_by_its_name(interpreter, is_python):
    assert Shebang(interpreter, []).is_python == is_python
