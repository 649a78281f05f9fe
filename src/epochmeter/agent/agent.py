"""The agent in the process of a training script: each pass over its data is a window, an epoch or an evaluation.

It connects to the controller at the first pass. It draws no random numbers, waits for the device at the borders of
windows only, and changes no batch. If it fails, it reports that once and stops measuring; the script continues.
"""

import contextlib
import itertools
import os
import sys
import threading
import weakref

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from epochmeter.agent.iterators import InnerIterator, MeasuredIterator, is_from_signal_handler
from epochmeter.agent.open_window import OpenWindow
from epochmeter.agent.ranks import UnansweredConnection, own_rank
from epochmeter.agent.tracing import ScriptTrace
from epochmeter.shared.protocol import (
    Built,
    Finished,
    NotMeasured,
    RankFailed,
    RankWindow,
    WindowClosed,
    WindowMeasured,
    WindowOpening,
)
from epochmeter.shared.record import Record
from epochmeter.worker.clock import Clock
from epochmeter.worker.connection import ControllerConnection, ControllerGoneError
from epochmeter.worker.device import describe_device, make_timeline
from epochmeter.worker.timeline import perf_counter_ns

NO_LOADER = "training steps were seen, but no pass over a torch DataLoader: only these are measured"
NO_STEP = "no optimizer step and no backward pass was seen"
NO_PARTS = "no pass over a torch DataLoader: an epoch is {} {}, and waits for data are not measured"
LOADER_PARTS = ("data_stall_s", "host_wait_s", "compute_s", "overhead_s", "loader_start_s", "loader_stop_s")
"""Absent without a DataLoader."""
LATE_DEVICE = "the first window was discarded: CUDA was initialized within it"
REPLY_LIMIT_S = 30
"""How long the script waits for the controller, which may be stopped (SIGSTOP)."""


class Agent:
    """Measures the training in this process.

    Args:
        socket: Path of the controller's socket.
        folder: The run folder.
        steps_per_window: Batches per window over a DataLoader without a length.
        trace: Further arguments of `ScriptTrace`; None: no steps are traced.
    """

    def __init__(self, socket, folder, steps_per_window, trace=None):
        self._socket, self._record, self._steps_per_window = socket, Record(folder), steps_per_window
        self._owner = None  # the process and thread that trains
        self._is_on = True
        self._connection = self._clock = self._window = self._forward_hook = None
        self._trace = ScriptTrace(folder, **trace) if trace else None
        self._model = lambda: None  # the module of the first forward pass
        self._known = weakref.WeakSet()  # loaders of earlier windows
        self._ahead = weakref.WeakSet()  # loaders whose next batch is fetched before the script trains on a batch
        self._epochs = self._optimizer_steps = self._backward_passes = 0
        self._expected_epochs = None
        self.counts_steps = False
        """Whether training steps are measured: without a pass over a DataLoader, and without a `Meter`."""
        self.is_fetching = False
        """Whether a measured loader is at work: passes that it makes itself are parts of its own."""
        self.recorded = {}
        """The controller's reply to the last window of each name, after `read_reply`."""
        self._unread = None  # name of the last window, and a function that waits for its reply
        self.reason = ""
        """Why measuring ended."""

    def iterate(self, loader, make_iterator, name=None, is_explicit=False):
        """Return an iterator over a loader, which is measured unless another pass is being measured."""
        if not self.is_ready() or self.is_fetching:
            return make_iterator(loader)
        window = self.guarded(self._begin_pass, loader, name, is_explicit)
        if window is None:
            return InnerIterator(self, make_iterator(loader))
        called_ns = perf_counter_ns()
        try:
            self.is_fetching = True
            iterator = make_iterator(loader)
        except BaseException:
            self.close(window)
            raise
        finally:
            self.is_fetching = False
        return MeasuredIterator(self, window, iterator, perf_counter_ns() - called_ns)

    def read_reply(self):
        """Read the controller's reply to the last window; the script has not waited for it at the window's end."""
        if self._unread is not None and self.is_ready():
            (name, reply), self._unread = self._unread, None
            self.recorded[name] = reply()

    def expect_epochs(self, count):
        """Note how many epochs follow, which a forecast of the run needs; None: not known."""
        self._expected_epochs = None if count is None else self._epochs + count

    def open_named(self, name):
        """Open a window of the script's own; return None if another one is open, which it is a part of."""
        return self.guarded(self._open_named, name) if self.is_ready() else None

    def optimizer_stepped(self, optimizer, arguments, keywords):
        """Note a step of any optimizer."""
        self._optimizer_steps += 1
        if self.counts_steps and self.is_ready():
            if self._optimizer_steps == 1:
                self._discard_counted()  # its steps are backward passes
            self.guarded(self._next_step)
        window = self._window
        if window is None:
            return
        is_last = window.add_step(optimizer)
        if window.is_exhausted:
            self.close(window)
        elif is_last:
            self._clock.end_last_step()  # the script may save or evaluate now, and request no more batches

    def backward_ended(self):
        """Note a backward pass: a training step of a script that changes its weights without an optimizer of torch."""
        if self._optimizer_steps or not self.is_ready():
            return
        self._backward_passes += 1
        if self.counts_steps:
            self.guarded(self._next_step)
        if self._window is not None:
            self._window.training_steps += 1

    def trace_step(self, window):
        """Trace the next step of a pass that trains, if it is one of the steps to trace."""
        trace = self._trace
        if trace is None or window is not self._window or not window.training_steps or not self.is_ready():
            return
        if self._is_first and self._epochs == trace.epoch and not trace.is_done:
            self.guarded(lambda: self._send(trace.step(window, self._model())))

    def timed(self, window, source, waited_ns=0):
        """Return an iterator that times the batches of `source`."""
        return self._clock.batches(source, window.add, waited_ns)

    def close(self, window=None):
        """Close a window, unless it is closed already; without one, close the window that is open."""
        if self.is_ready() and self._window is not None and window in (None, self._window):
            self.guarded(self._close)

    def end_pass(self, window, error):
        """Close a window after the loader's error or end, or later if batches were fetched ahead."""
        if isinstance(error, StopIteration) and window.training_steps and contains(self._ahead, window.loader):
            window.is_exhausted = True
        else:
            self.close(window)

    def inner_step(self, earlier):
        """Note a request of a pass within another pass, and return the step of the outer pass.

        If the earlier request was in the same step, the inner pass is a loop of its own, such as an evaluation. Its
        time is overhead then. Otherwise it gets further samples for the step.
        """
        step = (self._window, self._window.batches) if self.is_ready() and self._window else None
        if step and step == earlier:
            self._clock.end_step()
        return step

    def renew(self, window):
        """Close a window within a pass, and return the next one; None if the agent is off."""
        self.close(window)
        self.expect_epochs(None)  # an epoch of the script has several windows
        return self.guarded(self._open, window.limit, window.loader, window.limit)

    def end(self, error=None):
        """Close the last window at the script's end, unless an exception ended it, and measure no more."""
        if self._owner is not None and self._owner[0] == os.getpid():
            self._owner = os.getpid(), threading.get_ident()  # the thread that trained has ended
        if not self.is_ready():
            return
        error = error or uncaught_error()
        if error is None:
            self.close()
        self.guarded(self.read_reply)
        has_trained = self._optimizer_steps or self._backward_passes
        if self._connection is None and has_trained:
            self.guarded(self._connect)
        reason = NO_STEP if not has_trained else "" if self._epochs else NO_LOADER
        self._switch_off(
            *([NotMeasured(reason)] if reason and not self.recorded else []),
            RankFailed("exception", describe_error(error), 0) if error else Finished(),
        )

    def guarded(self, act, *arguments):
        """Call a function of the agent and return its result; if it fails, report that and measure no more."""
        try:
            return act(*arguments) if self._is_on else None
        except (Exception, ControllerGoneError) as error:  # not a SystemExit of the script's signal handler
            self.fail(error)
            if is_from_signal_handler(error):
                raise
            return None
        except KeyboardInterrupt as error:  # the controller's reply may be missing
            self.fail(error)
            raise

    def fail(self, error):
        """Report an error of the agent on stderr and to the controller, and measure no more."""
        self.reason = reason = describe_error(error)
        if self._is_on:
            with contextlib.suppress(Exception):
                print("epochmeter: measuring ended, the script continues: {}".format(reason), file=sys.stderr)
        self._switch_off(NotMeasured(reason))

    def _send(self, message):
        if message is not None:
            self._connection.send(message)

    def _switch_off(self, *messages):
        if self._trace is not None:
            self._trace.close()
        self._is_on, self._window = False, None
        self._remove_forward_hook()
        if self._connection is not None:
            with contextlib.suppress(OSError):
                for message in messages:
                    self._connection.send(message)
            self._connection.close()

    def is_ready(self):
        """Whether the agent is on, and this is the process and thread that trains: not a DataLoader worker's."""
        return self._is_on and self._owner in (None, (os.getpid(), threading.get_ident()))

    def _begin_pass(self, loader, name, is_explicit):
        """Open a window for a pass; None for a pass within another pass, whose time is overhead of the outer pass."""
        self._stop_counting()
        if self._window is not None:
            # Lightning leaves an evaluation before training, and keeps its iterator.
            is_over = self._window.is_complete() or torch.is_grad_enabled() > self._window.has_gradients
            if self._window.loader() is not loader and not is_over:
                if not torch.is_grad_enabled():
                    self._clock.end_step()
                return None
            self._close()  # the script requests no more batches of this pass, and still holds its iterator
        length = len(loader) if has_length(loader) else None
        limit = None if is_explicit or length is not None else self._steps_per_window
        return self._open(limit or length or 0, reference(loader), limit, length, name, is_explicit)

    def _next_step(self):
        """Begin a step of a script that has no DataLoader: it ends with the next training step."""
        window = self._window
        if window is None or window.batches == window.limit:
            if window is not None:
                self._close()
            limit = self._steps_per_window
            window = self._open(limit, limit=limit, name="epoch")
            window.steps = self._clock.batches(itertools.repeat(None), window.add)
        self.trace_step(window)
        next(window.steps)

    def _stop_counting(self):
        """Count no more steps, and discard the window of counted steps: the script has other windows."""
        self.counts_steps = False
        self._discard_counted()

    def _discard_counted(self):
        if self._window is not None and self._window.steps is not None:
            self._window.name = ""
            self.close()

    def _open_named(self, name):
        self._stop_counting()
        if self._window is not None and not self._window.is_complete():
            self._clock.end_step()
            return None
        self.close()
        return self._open(0, name=name)

    def _open(self, steps, *properties, **named):
        if self._connection is None:
            self._connect()
        window = OpenWindow(used_device(), *properties, **named)
        if self._clock is None or self._clock_device != window.device:
            self._clock_device = window.device
            self._clock = Clock(make_timeline(window.device), observe=self._progress)
        is_known = contains(self._known, window.loader) and not contains(self._ahead, window.loader)
        if window.name is None and not is_known:
            self._forward_hook = register_module_forward_pre_hook(self._on_first_forward)
        if window.device.type == "cuda":
            torch.cuda.synchronize()
        opening = WindowOpening(window.name or "epoch", self._epochs, steps, epochs=self._expected_epochs)
        reply = self._connection.post(opening)
        self.read_reply()
        reply()
        self._window = window
        self._clock.open()
        return window

    def _progress(self, steps, now_ns, parts):
        """Send the progress of an epoch; a pass without training steps so far may be an evaluation."""
        window = self._window
        if window is not None and window.training_steps:
            measured = (lambda: without_copies(parts())) if window.steps is None else None
            self._connection.progress(steps, now_ns, measured)

    def _connect(self):
        self._owner = os.getpid(), threading.get_ident()
        os.environ.pop("EPOCHMETER_AGENT", None)  # child processes of this one are not measured
        rank, ranks, self._is_first = own_rank()
        connection = (ControllerConnection if self._is_first else UnansweredConnection)(
            self._socket, rank, self._is_first
        )
        self._connection = connection
        connection.reply_limit_s = REPLY_LIMIT_S
        facts = describe_device(used_device())
        try:
            connection.request(Built({}, dict(facts, ranks=ranks) if ranks > 1 else facts))
        except (ControllerGoneError, ConnectionError):
            raise RuntimeError(
                "the controller is gone or silent, or it measures another process of the script"
            ) from None

    def _close(self):
        window, self._window = self._window, None
        self._send(self._trace and self._trace.close())
        self._clock.close()
        self._remove_forward_hook()
        parts = self._clock.parts()
        # Timestamps of the first steps are not those of a device that was initialized later.
        flaw = window.flaw or (LATE_DEVICE if window.device != used_device() else None)
        if flaw:
            self._connection.send(NotMeasured(flaw))
        name = None if flaw else self._name(window, parts["steps"])
        if window.loader() is not None and name:
            with contextlib.suppress(TypeError):  # such as a list, which cannot be referenced weakly
                self._known.add(window.loader())
        times = (self._clock.opened_ns, self._clock.closed_ns)
        steps = None if window.limit in (None, parts["steps"]) else parts["steps"]
        epoch = self._epochs if name == "epoch" else max(0, self._epochs - 1)
        self._connection.request(WindowClosed(*times, name or "", epoch, steps))
        if not name:
            return
        if window.steps is not None:
            if not self._epochs:
                steps_of = "optimizer steps" if self._optimizer_steps else "backward passes"
                self._connection.send(NotMeasured(NO_PARTS.format(window.limit, steps_of)))
            parts = {part: value for part, value in parts.items() if part not in (*LOADER_PARTS, "copy_s")}
        else:
            late_s = self._clock.tail_s - parts["loader_stop_s"] if window.is_exhausted else 0.0
            parts = dict(without_copies(parts), compute_s=parts["compute_s"] + late_s)
            parts["overhead_s"] -= late_s
        if window.samples is not None:
            parts["samples"] = window.samples
        if name == "epoch":
            if window.learning_rate is not None:
                parts["learning_rate"] = float(window.learning_rate)
            if self._is_first:
                self._record.append_steps(self._clock.rows, durably=False)  # the controller waits for the disk
            self._epochs += 1
        measured = RankWindow(*times, 0, parts, [], False, 0.0, 0.0, None)
        self._unread = name, self._connection.post(WindowMeasured([measured], []))

    def _name(self, window, steps):
        """Return a window's name; None for a pass before the first epoch, or one that only reads samples."""
        if window.name not in (None, "epoch", "val"):
            return window.name
        if not steps:
            return None
        if window.name or window.training_steps:
            return window.name or "epoch"
        if window.is_explicit and not self._optimizer_steps and torch.is_grad_enabled():
            return "epoch"  # of a script without an optimizer of torch
        is_used = window.is_explicit or window.has_forward or contains(self._known, window.loader)
        return "val" if self._epochs and is_used else None

    def _on_first_forward(self, module, inputs):
        window = self._window
        if window is not None:
            window.has_forward = True
            self._model = weakref.ref(module)
            self._remove_forward_hook()
            if window.loader() is not None:
                with contextlib.suppress(TypeError):
                    (self._ahead.add if window.batches > 1 else self._ahead.discard)(window.loader())

    def _remove_forward_hook(self):
        if self._forward_hook is not None:
            self._forward_hook.remove()
            self._forward_hook = None


def without_copies(parts):
    """Return parts with `copy_s`, the agent's own work, added to the overhead; the script's copies are in compute."""
    parts = dict(parts, overhead_s=parts["overhead_s"] + parts["copy_s"])
    del parts["copy_s"]
    return parts


def reference(loader):
    """Return a function that returns the loader; the agent does not keep it alive, if that is possible."""
    try:
        return weakref.ref(loader)
    except TypeError:  # such as a list or a generator
        return lambda: loader


def contains(loaders, reference):
    """Return whether a set of loaders contains a loader that still exists."""
    try:
        return reference() is not None and reference() in loaders
    except TypeError:  # not hashable
        return False


def has_length(loader):
    """Return whether a loader knows its number of batches."""
    try:
        len(loader)
    except (TypeError, NotImplementedError):
        return False
    return True


def describe_error(error):
    """Return class and text of an exception."""
    return "{}: {}".format(type(error).__name__, error)


def uncaught_error():
    """Return the exception that ended the script; None if there is none, and in interactive sessions, which go on."""
    return None if is_interactive() else getattr(sys, "last_value", None)


def is_interactive():
    """Return whether this is a notebook or an interactive Python."""
    return hasattr(sys, "ps1") or "IPython" in sys.modules


def used_device():
    """Return the device of the script: the current GPU if it has initialized CUDA, else the CPU."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
