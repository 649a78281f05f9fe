"""Makes this Python seem to run on macOS, as far as a command can tell: no file and no call of Linux only.

What a library has compiled for Linux is imported before, as its module for macOS is not here.
"""

import builtins
import importlib.util
import io
import multiprocessing
import multiprocessing.context
import os
import sys
import sysconfig
import time
import types

sysconfig.get_config_vars()
if importlib.util.find_spec("psutil"):
    import psutil  # noqa: F401

LINUX = ("/proc", "/sys", "/dev/shm", "/run/lock")
CALLS = ("sched_getaffinity", "sched_setaffinity", "sched_setscheduler", "posix_fadvise", "pidfd_open", "pipe2",
         "memfd_create", "eventfd", "fdatasync", "sched_param", "SCHED_IDLE")  # fmt: skip


def without_linux(call):
    def checked(path, *arguments, **options):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(LINUX):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return call(path, *arguments, **options)

    return checked


for name in CALLS:
    if hasattr(os, name):
        delattr(os, name)
if hasattr(time, "CLOCK_BOOTTIME"):
    del time.CLOCK_BOOTTIME
for module, names in ((os, ("open", "stat", "lstat", "listdir", "scandir", "readlink", "statvfs")), (io, ("open",))):
    for name in names:
        setattr(module, name, without_linux(getattr(module, name)))
builtins.open = io.open
uname = os.uname()
os.uname = lambda: os.uname_result(("Darwin", "mac", "25.0.0", "Darwin Kernel", "arm64"))
multiprocessing.set_start_method("spawn")  # the default there
multiprocessing.context._concrete_contexts.pop("fork", None)
proxies = types.ModuleType("_scproxy")
proxies._get_proxy_settings, proxies._get_proxies = dict, dict
sys.modules["_scproxy"] = proxies
sys.platform = "darwin"
