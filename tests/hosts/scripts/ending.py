"""How a script ends in its second epoch: by exit codes, exceptions, signals. Its record has all until then."""

import atexit
import os
import signal
import sys
import threading

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

kind = sys.argv[1]
truth = Truth()
model, optimizer = small_model()


class Stop(BaseException):
    pass


def end():
    truth.measure()
    truth.write(model)
    sys.stdout.flush()
    if kind.startswith("code"):
        sys.exit(int(kind[4:]))
    if kind == "text":
        sys.exit("the script's last words")
    if kind == "none":
        sys.exit()
    if kind == "error":
        raise RuntimeError("the script's own error") from ValueError("its cause")
    if kind == "base":
        raise Stop
    if kind == "os_exit":
        os._exit(4)
    if kind == "system_exit_object":
        raise SystemExit({"a": 1})
    if kind.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, kind))
    if kind == "abort":
        os.abort()
    if kind == "thread":
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
    if kind == "interrupt":
        raise KeyboardInterrupt
    sys.exit(0)


atexit.register(lambda: print("at exit", flush=True))
loader = DataLoader(Data(64, truth), 8)
for epoch in range(2):
    with truth.window(partial=epoch == 1):
        for number, (inputs, targets) in enumerate(loader, 1):
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
            if epoch == 1 and number == 4:
                end()
