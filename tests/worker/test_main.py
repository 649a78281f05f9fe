"""The end of the training process."""

import subprocess
import sys
from importlib import import_module

from epochmeter.config.installation import python_path
from epochmeter.worker.__main__ import modules_of_user

END = """
import atexit, sys, time
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

from epochmeter.worker.__main__ import end


class Freed:
    def __del__(self):
        print("freed")


def write():
    time.sleep(0.2)
    print("thread")


kept = Freed()
executor = ThreadPoolExecutor(1)
executor.submit(print, "executor").result()
Thread(target=write).start()
atexit.register(print, "exit function")
end()
"""


def test_the_process_waits_for_threads_and_exit_functions_and_frees_no_objects():
    environment = {"PYTHONPATH": python_path()}
    ended = subprocess.run([sys.executable, "-c", END], env=environment, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == ["executor", "thread", "exit function"]


def test_objects_of_a_users_own_code_are_freed_and_so_written(tmp_path):
    (tmp_path / "mine.py").write_text("kept = open('written', 'w')\nkept.write('all')\n")
    source = "import mine\nfrom epochmeter.worker.__main__ import end\nend()\n"
    environment = {"PYTHONPATH": f"{python_path()}:{tmp_path}"}
    ended = subprocess.run(
        [sys.executable, "-c", source], env=environment, cwd=tmp_path, capture_output=True, timeout=60
    )
    assert ended.returncode == 0
    assert (tmp_path / "written").read_text() == "all"


def test_libraries_count_as_no_code_of_the_user():
    """In the process of the tests, whose own modules are a user's code."""
    for name in ("epochmeter.worker.training", "torchvision", "torch._dynamo"):
        import_module(name)
    libraries = {*sys.stdlib_module_names, "epochmeter", "torch", "torchvision", "numpy", "PIL", "sympy", "_pytest"}
    found = modules_of_user()
    assert __name__ in found
    assert [name for name in found if name.partition(".")[0] in libraries] == []
