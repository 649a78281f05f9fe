"""A script that replaces sys.stderr and sys.stdout, closes file descriptors, and changes its folder."""

import io
import os
import sys

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

kind = sys.argv[1]
truth = Truth()
path = os.environ["HOST_TRUTH"] = os.path.abspath(os.environ["HOST_TRUTH"])
own, sys.stderr = sys.stderr, io.StringIO()
if kind == "none":
    sys.stderr = None
elif kind == "closed":
    sys.stderr.close()
elif kind == "folder":
    os.chdir("/")
    sys.path.clear()
elif kind == "files":
    os.closerange(3, 200)
model, optimizer = small_model()
loader = DataLoader(Data(64, truth), 8)
for epoch in range(2):
    with truth.window():
        for inputs, targets in loader:
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
    if epoch == 0 and kind == "files":
        os.closerange(3, 200)
        kept = [os.open("/dev/null", os.O_RDWR) for _ in range(30)]
truth.write(model)
print("written to stderr:", repr(sys.stderr.getvalue()) if kind in ("folder", "files") else "")
sys.stderr = own
