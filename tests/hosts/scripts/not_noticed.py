"""A script that inspects its process at five instants: what it finds must not show that it is measured.

What differs is documented in docs/scripts.md, and left out here.
"""

import sys

MODULES_AT_START = set(sys.modules)

import atexit
import gc
import json
import os
import random
import signal
import threading
import warnings

random.seed(0)
KEPT_VARIABLES = {"PYTHONPATH", "HOST_TRUTH", "HOST_ERRORS", "PWD", "OLDPWD", "XDG_STATE_HOME", "_", "SHLVL"}
HIDDEN_MODULES = {"epochmeter", "sitecustomize", "faulthandler", "resource"}
ADDED = {"__init_subclass__", "dataset", "collate_fn", "worker_init_fn"}
found = {}


def hashed(value):
    return __import__("hashlib").sha256(repr(value).encode()).hexdigest()[:16]


def look(instant):
    import numpy
    import torch

    status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
    names = sorted(os.listdir("/proc/self/fd"), key=int)
    files = [os.readlink(f"/proc/self/fd/{name}") for name in names if os.path.lexists(f"/proc/self/fd/{name}")]
    found[instant] = {
        "environment": {
            name: hashed(text)
            for name, text in sorted(os.environ.items())
            if name not in KEPT_VARIABLES and not name.startswith("EPOCHMETER_")
        },
        "path": sys.path,
        "argv": sys.argv,
        "flags": str(sys.flags),
        "executable": sys.executable,
        "modules": sorted(name for name in sys.modules if name.partition(".")[0] not in HIDDEN_MODULES),
        "filters": [str(each) for each in warnings.filters],
        "showwarning": str(warnings.showwarning.__module__),
        "signals": {number: str(signal.getsignal(number)).partition(" at ")[0] for number in range(1, signal.NSIG)},
        "blocked": [status["SigBlk"], status["SigIgn"], status["SigCgt"]],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "tasks": status["Threads"].strip(),
        "files": len(files) <= found["before"]["count"] + 3 if instant not in ("import", "before") else True,
        "count": len(files) if instant in ("import", "before") else 0,
        "umask": status["Umask"],
        "affinity": sorted(os.sched_getaffinity(0)),
        "nice": os.nice(0),
        "random": hashed(random.getstate()),
        "numpy": hashed(numpy.random.get_state()[1].tolist()),
        "torch": hashed(torch.get_rng_state().tolist()),
        "seed": torch.initial_seed() if instant != "import" else 0,
        "settings": [
            torch.get_num_threads(),
            torch.get_num_interop_threads(),
            str(torch.get_default_dtype()),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.mkldnn.enabled,
            torch.get_float32_matmul_precision(),
            torch.cuda.is_initialized(),
            torch.is_anomaly_enabled(),
            torch.is_inference_mode_enabled(),
        ],
        "hooks": [
            sys.excepthook.__name__,
            sys.displayhook.__name__,
            str(sys.gettrace()),
            str(sys.getprofile()),
            threading.excepthook.__name__,
            sys.unraisablehook.__name__,
        ],
        "importers": [len(sys.meta_path) >= 3, len(sys.path_hooks)],
        "garbage": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug()],
        "folder": os.path.basename(os.getcwd()),
        "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(),
        "limits": str(__import__("resource").getrlimit(__import__("resource").RLIMIT_NOFILE)),
        "main": sorted(vars(sys.modules["__main__"])),
        "encoding": [sys.stdout.encoding, sys.stderr.encoding, sys.stdout.line_buffering],
        "locale": __import__("locale").setlocale(0),
        "session": os.getsid(0) == os.getsid(os.getppid()),
        "group": os.getpgid(0) == os.getpgid(os.getppid()),
        "children": len(open(f"/proc/self/task/{os.getpid()}/children").read().split()),
        "defaults": [
            __import__("socket").getdefaulttimeout(),
            str(__import__("multiprocessing").get_start_method(allow_none=True)),
        ],
    }


import numpy
import torch

numpy.random.seed(0)
torch.manual_seed(0)
look("import")
from truth import Data, Truth, small_model, train_on

truth = Truth()
model, optimizer = small_model()
loader = torch.utils.data.DataLoader(Data(64, truth), 8, shuffle=True, num_workers=0)
signature = [
    str(__import__("inspect").signature(each))
    for each in (
        torch.save,
        torch.autograd.backward,
        torch.optim.SGD.step,
        torch.utils.data.DataLoader,
        torch.utils.data.DataLoader.__iter__,
    )
]
names = [
    each.__name__ + each.__module__ + each.__qualname__
    for each in (torch.save, torch.autograd.backward, torch.optim.SGD.step, torch.utils.data.DataLoader.__iter__)
]
look("before")
for epoch in range(2):
    with truth.window():
        for number, (inputs, targets) in enumerate(loader):
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
            if epoch == 1 and number == 4:
                look("in")
look("after")


def finish():
    look("exit")
    truth.write(model)
    for instant, seen in found.items():
        for key, value in seen.items():
            print(instant, key, json.dumps(value, default=str))
    others = {name.partition(".")[0] for name in MODULES_AT_START} - sys.stdlib_module_names - HIDDEN_MODULES
    print(sorted(others))
    print(
        signature,
        names,
        sorted(vars(torch.utils.data.DataLoader).keys() - ADDED),
        model._forward_hooks,
        optimizer._optimizer_step_post_hooks,
    )
    print(iter(loader).__class__.__name__, isinstance(iter(loader), torch.utils.data.dataloader._BaseDataLoaderIter))


atexit.register(finish)
