"""What a script knows of itself: its windows by its own count and clock, and a hash of its weights.

The script writes them to the file that HOST_TRUTH names. HOST_ERRORS names the file that its stderr goes to.
"""

import contextlib
import hashlib
import json
import os
import time

if "HOST_ERRORS" in os.environ:
    descriptor = os.open(os.environ["HOST_ERRORS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 2)
    os.close(descriptor)

BATCH_READ_S = 0.004


class Truth:
    """Counts and times the windows of a script.

    Args:
        note: Part of a note that the record must have.
    """

    def __init__(self, note=""):
        self.windows, self.note, self.open = [], note, None
        self._began_s = self._delayed_s = 0.0

    @contextlib.contextmanager
    def window(self, name="epoch", partial=False, label="", **unknown):
        """Time a window; `unknown` are the keys that the record must lack, with a part of the reason that it gives."""
        self.open = {"window": name, "partial": partial, "label": label, "steps": 0, "samples": 0, "data_stall_s": 0.0}
        self.open["phases"] = {}
        self.windows.append(self.open)
        self._delayed_s, self._began_s = without_processor_s(), time.perf_counter()
        try:
            yield self
        finally:
            self.measure()
            for key in unknown:
                self.open.pop(key, None)
            self.open["unknown"] = unknown
            self.open = None

    def measure(self):
        """Set the time of the open window up to now, and for how long it was without a processor."""
        self.open["e2e_s"] = time.perf_counter() - self._began_s
        self.open["delay_s"] = without_processor_s() - self._delayed_s
        self.open["unknown"] = {}

    def step(self, samples):
        """Count a step of the open window."""
        self.open["steps"] += 1
        self.open["samples"] += samples

    def waited(self, seconds):
        """Add to the data stall of the open window, if there is one."""
        if self.open is not None:
            self.open["data_stall_s"] += seconds

    @contextlib.contextmanager
    def waiting(self):
        """Add the time in a `with` block to the data stall of the open window."""
        began_s = time.perf_counter()
        yield
        self.waited(time.perf_counter() - began_s)

    @contextlib.contextmanager
    def phase(self, name):
        """Add the time in a `with` block to a phase of the open window, which must have it."""
        began_s = time.perf_counter()
        yield
        self.open["phases"][name] = self.open["phases"].get(name, 0.0) + time.perf_counter() - began_s

    def write(self, *models, **values):
        """Write everything to the file; `values` must be the same in a script that is not measured."""
        whole = {"windows": self.windows, "note": self.note, "weights": digest(*models), "values": values}
        with open(os.environ.get("HOST_TRUTH", os.devnull), "w") as file:
            json.dump(whole, file)


class Data:
    """A dataset whose reads take a known time, which is a data stall if the training loop waits for it."""

    def __init__(self, size=64, truth=None, read_s=BATCH_READ_S):
        self.size, self.truth, self.read_s = size, truth, read_s

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        began_s = time.perf_counter()
        time.sleep(self.read_s)
        items = [self.item(index) for index in indices]
        if self.truth is not None:
            self.truth.waited(time.perf_counter() - began_s)
        return items

    def item(self, index):
        """Return an input and a target."""
        import torch

        return torch.full((8,), index / self.size), torch.tensor([float(index % 2)])


def without_processor_s():
    """Return for how long this thread has waited for a processor, and the host of a virtual machine has taken any.

    By so much, two clocks of one window may differ: the thread may have waited between them.
    """
    try:
        with open("/proc/thread-self/schedstat") as file:
            delay_ns = int(file.read().split()[1])
        with open("/proc/stat") as file:
            taken_ticks = int(file.readline().split()[8])
    except (OSError, LookupError, ValueError):
        return 0.0
    return delay_ns * 1e-9 + taken_ticks / os.sysconf("SC_CLK_TCK")


def digest(*models):
    """Return a hash of the weights of models, tensors or dictionaries of tensors."""
    hashed = hashlib.sha256()
    for model in models:
        tensors = model.state_dict() if hasattr(model, "state_dict") else {"": model}
        for name, tensor in tensors.items():
            hashed.update(name.encode())
            hashed.update(tensor.detach().cpu().contiguous().float().numpy().tobytes())
    return hashed.hexdigest()


def small_model(inputs=8):
    """Return a model with seeded weights, and its optimizer."""
    import torch

    torch.utils.data.default_collate([(torch.ones(8), torch.ones(1))])  # the first call takes milliseconds
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(inputs, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train_on(model, optimizer, inputs, targets, truth=None):
    """Make one training step of a few milliseconds, and return its loss; its phases are known to a `truth`."""
    timed = (lambda phase: contextlib.nullcontext()) if truth is None else truth.phase
    optimizer.zero_grad()
    with timed("forward_s"):
        outputs = model(inputs)
    with timed("loss_s"):
        loss = (outputs - targets).pow(2).mean()
        time.sleep(0.003)
    with timed("backward_s"):
        loss.backward()
    optimizer.step()
    return loss.item()
