"""Runs another host as code (`exec`), as a module (`runpy`), or without a file of `__main__` (`main`)."""

import runpy
import sys

kind, name = sys.argv[1], "plain"
folder = sys.path[0]
if kind == "exec":
    exec(compile(open(f"{folder}/{name}.py").read(), "<string>", "exec"), {"__name__": "__main__"})
elif kind == "runpy":
    runpy.run_module(name, run_name="__main__")
else:
    del sys.modules["__main__"].__file__
    sys.modules.pop("sitecustomize", None)  # absent in a Python without one that is not measured
    sys.modules.pop("site", None)
    __import__(name)
