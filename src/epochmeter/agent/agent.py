"""The agent in the process of a training script: each pass over its data is a window, an epoch or an evaluation.

It connects to the controller at the first pass. It draws no random numbers, waits for the device at the borders of
windows only, and changes no batch. If it fails, it reports that once and stops measuring; the script continues.
"""

import contextlib
import copy
import itertools
import os
import sys
import threading

import torch

from epochmeter.agent.iterators import READ_AHEAD, InnerIterator, MeasuredIterator, is_from_signal_handler
from epochmeter.agent.recorder import NO_PARTS, WindowRecorder, used_device
from epochmeter.agent.tracing import ScriptTrace
from epochmeter.agent.windows import OpenWindow, PassKinds, weak_getter
from epochmeter.shared.protocol import Finished, NotMeasured, RankFailed
from epochmeter.worker.connection import ControllerGoneError
from epochmeter.worker.timeline import perf_counter_ns

NO_LOADER = "training steps were seen, but no pass over a torch DataLoader: only these are measured"
NO_STEP = "no optimizer step and no backward pass was seen"
NO_BATCHES = itertools.repeat(None)
LATE_DEVICE = "the first window was discarded: CUDA was initialized within it"


class Agent:
    """Measures the training in this process, and records it in the run folder.

    `steps_per_window` is for a DataLoader without a length, and `trace` has further arguments of `ScriptTrace`.
    Hooks and a `Meter` call the methods up to `begin_part`; iterators call those from `trace_step` to `take_over`.
    """

    def __init__(self, socket, folder, steps_per_window, trace=None):
        self.window = None  # the open one
        self.thread = self._pid = None  # of the thread that trains, from the first window on
        self.trace = ScriptTrace(folder, **trace) if trace else None
        self.counts_steps = False  # whether steps outside passes count: not with a `Meter`, or after a step in a pass
        self.is_fetching = False  # whether a measured loader, whose own passes are not measured, is fetching a batch
        self.remove_backward_hook = lambda: None  # removes the hook `backward_ended`, after an optimizer step
        self.reason = ""  # why measuring ended
        self._steps_per_window = steps_per_window
        self.recorder = WindowRecorder(socket, folder, self._report_progress)
        self._kinds = PassKinds()
        self._is_on = True
        self._has_optimizer = self._has_backward = False  # whether the script made such a step
        self._is_read_ahead = False  # whether another thread requests the batches
        self._takes_single_batches = False  # whether the last pass was `next(iter(loader))` between two steps

    def iterate(self, loader, make_iterator, name=None, is_explicit=False):
        """Return an iterator over a loader, which is measured unless another pass is being measured."""
        if not self.is_ready() or self.is_fetching or getattr(self.recorder.clock, "is_fetching", False):
            return make_iterator(loader)
        window = self.guarded(self._begin_pass, loader, name, is_explicit)
        if window is None:
            outer, properties = self.window, None
            if outer is not None and outer.may_be_left(loader, name):
                properties = self.guarded(self._pass_properties, loader, name, is_explicit)
            return InnerIterator(self, make_iterator(loader), outer, properties)
        called_ns = perf_counter_ns()
        try:
            self.is_fetching = True
            iterator = make_iterator(loader)
        except BaseException:
            self.close(window)
            raise
        finally:
            self.is_fetching = False
        self.recorder.clock.add_early_wait(perf_counter_ns() - called_ns)
        return MeasuredIterator(self, window, iterator)

    def read_replies(self):
        """Read the controller's replies to windows; the script has not waited for them at their ends."""
        if self.is_ready():
            self.guarded(self.recorder.read_replies)

    def expect_epochs(self, count):
        """Note how many epochs follow, for the forecast of the run; None: unknown."""
        self.recorder.expected_epochs = None if count is None else self.recorder.epochs + count

    def open_named(self, name):
        """Open a window of the script's own; return None within another window, whose part it then is."""
        if not self.is_ready():
            return None
        self._discard_counted()
        if self.window is not None and not self.window.has_trained_last():
            return None
        self.close()
        return self._open(name=name)

    def close(self, window=None):
        """Close a window, unless it is closed already; without one, close the window that is open."""
        if self.is_ready() and self.window is not None and window in (None, self.window):
            self.guarded(self._close)

    def optimizer_stepped(self, optimizer, arguments, keywords):
        """Note a step of an optimizer of torch, which has ended."""
        try:
            if self.counts_steps and self._is_outside_passes():
                if not self._has_optimizer:
                    self._discard_counted()  # its steps are backward passes
                self._next_step()
            self._has_optimizer = True
            window = self.window
            if window is None:
                return
            window.training_steps += 1
            window.learning_rate = optimizer.param_groups[0].get("lr")
            if threading.get_ident() != self.thread and window.is_read_ahead():
                self._discard_read_ahead()
            elif window.batches == window.length:  # the script may have done the last step of a pass
                if window.is_exhausted:
                    self.close(window)
                elif window.may_be_complete():
                    self.recorder.clock.end_last_step()  # it may save or evaluate now, and request no more batches
        except BaseException as error:
            if self.is_of_script(error):
                raise

    def backward_ended(self):
        """Note a backward pass: a training step of a script that changes its weights without an optimizer of torch."""
        if not self.is_ready():
            return
        self._has_backward = True
        if self.counts_steps and not self._has_optimizer and self._is_outside_passes():
            self.guarded(self._next_step)
        if self.window is not None and self._has_optimizer:
            self.window.has_backward = True
        elif self.window is not None:
            self.window.training_steps += 1

    def begin_part(self, loader):
        """Note that a pass of a subclass begins a pass of its base class: after its last batch, an epoch is over."""
        window = self.window
        if window is not None and window.batches == window.length and window.loader() is loader:
            window.limit = window.batches + 1  # with the batch that is being fetched

    def trace_step(self, window):
        """Trace the next step of a pass that trains, if it is one of the steps to trace."""
        is_traced = self.recorder.is_first and self.recorder.epochs == self.trace.epoch
        if is_traced and window.training_steps and self.is_ready():
            self._report_trace(self.trace.step(window, self._kinds.model()))

    def end_pass(self, window):
        """Close a window at the loader's end, or later if batches were fetched ahead."""
        window.length = window.batches
        if window.training_steps and self._kinds.is_fetched_ahead(window):
            window.is_exhausted = True
        else:
            self.close(window)

    def inner_step(self, earlier):
        """Note a request of a pass within another pass, and return the step of the outer pass.

        The time after a second request in the same step is overhead: the inner pass is a loop, such as an evaluation.
        """
        step = (self.window, self.window.batches) if self.is_ready() and self.window else None
        if step and step == earlier:
            self.recorder.clock.end_step()
        return step

    def renew(self, window):
        """Close a window within a pass, and return the next one; None if the agent is off."""
        self.close(window)
        self.expect_epochs(None)  # an epoch of the script has several windows
        limit = window.length or window.limit
        return self.guarded(self._open, loader=window.loader, limit=limit, is_partial=True)

    def replace_pass(self, outer, trained, properties):
        """Close `outer`, which the script left after `trained` training steps; return the window of a new pass."""
        if outer is self.window:
            outer.training_steps = trained
            self.close(outer)
        return self.guarded(self._open, **properties)

    def take_over(self, outer, properties):
        """Return the window of another pass that continues `outer`, whose first batch came from the other loader."""
        self.window = copy.copy(outer)
        vars(self.window).update(properties, samples=None)
        return self.window

    def end(self, error=None):
        """Close the last window at the script's end, unless an exception ended it, and measure no more."""
        if self._pid == os.getpid():
            self.thread = threading.get_ident()  # the thread that trained has ended
        if not self.is_ready():
            return
        is_interactive = hasattr(sys, "ps1") or "IPython" in sys.modules  # it continues after an exception
        error = error or (None if is_interactive else getattr(sys, "last_value", None))
        if error is None:
            self.close()
        self.read_replies()
        has_trained = self._has_optimizer or self._has_backward
        if self.recorder.connection is None and has_trained:
            self.guarded(self._connect)
        last = RankFailed("exception", describe_error(error), 0) if error else Finished()
        is_explained = self.recorder.recorded or (has_trained and self._is_read_ahead)  # which has sent its own reason
        self._switch_off(*([] if is_explained else [NotMeasured(NO_LOADER if has_trained else NO_STEP)]), last)

    def guarded(self, act, *arguments, **keywords):
        """Call a function of the agent and return its result; if it fails, report that and measure no more."""
        try:
            return act(*arguments, **keywords) if self._is_on else None
        except BaseException as error:
            if self.is_of_script(error):
                raise
            return None

    def is_of_script(self, error):
        """Return whether the script must get an error: an interrupt, an exit, or an error of its own signal handler.

        All of them except exits end measuring, since a reply of the controller may be missing.
        """
        is_of_agent = isinstance(error, (Exception, ControllerGoneError))
        if is_of_agent or isinstance(error, KeyboardInterrupt):
            self.fail(error)
        return not is_of_agent or is_from_signal_handler(error)

    def fail(self, error):
        """Report an error of the agent on stderr and to the controller, and measure no more."""
        self.reason = reason = describe_error(error)
        if self._is_on:
            with contextlib.suppress(Exception):
                print("epochmeter: measuring ended, the script continues: {}".format(reason), file=sys.stderr)
        self._switch_off(NotMeasured(reason))

    def is_ready(self):
        """Whether the agent is on, and this is the process and thread that trains: not a DataLoader worker's."""
        is_owner = self._pid is None or (self._pid == os.getpid() and self.thread == threading.get_ident())
        return self._is_on and is_owner

    def _switch_off(self, *messages):
        if self.trace is not None:
            self.trace.close()
        self._is_on, self.window, self.trace = False, None, None
        self._kinds.unwatch()
        self.recorder.end(messages)

    def _begin_pass(self, loader, name, is_explicit):
        """Open a window for a pass; return None within another window, for which the pass is overhead."""
        if self.counts_steps and self._is_outside_passes():
            may_train = not (self.recorder.epochs or self._takes_single_batches) and torch.is_grad_enabled()
            if self._is_read_ahead or (self.window is not None and not may_train):
                return None
        self._discard_counted()
        if self.window is not None:
            if not self._is_left(self.window, loader):
                if not torch.is_grad_enabled():
                    self.recorder.clock.end_step()
                return None
            self._close()
        return self._open(**self._pass_properties(loader, name, is_explicit))

    def _is_left(self, window, loader):
        """Return whether the script, which begins a pass over `loader`, requests no more batches of an earlier pass.

        It may hold its iterator: Lightning does so after an evaluation before training, some scripts after one batch.
        """
        has_gradients = torch.is_grad_enabled()
        is_ahead = self._kinds.is_fetched_ahead(window) and not window.is_exhausted
        is_over = window.is_complete() and not (is_ahead or (has_gradients and window.is_before_last_step()))
        begins_training = has_gradients and not window.has_gradients
        begins_evaluation = window.loader() is loader and not (has_gradients or window.training_steps)
        return is_over or begins_training or begins_evaluation

    def _pass_properties(self, loader, name, is_explicit):
        """Return arguments of `OpenWindow` for a pass over a loader."""
        try:
            length = len(loader)
        except (TypeError, NotImplementedError):
            length = None
        limit = None if is_explicit or length is not None else self._steps_per_window
        return {
            "loader": weak_getter(loader), "limit": limit, "length": length, "name": name, "is_explicit": is_explicit,
        }  # fmt: skip

    def _next_step(self):
        """Begin a step outside passes, which ends with the next training step."""
        window = self.window
        if window is None or window.batches == window.limit:
            if window is not None:
                self._close()
            window = self._open(limit=self._steps_per_window, name="epoch", is_counted=True, is_partial=True)
        if self.trace is not None:
            self.trace_step(window)
        self.recorder.clock.fetch(NO_BATCHES)
        window.batches += 1

    def _discard_read_ahead(self):
        """Discard a pass whose batches another thread requests; measure this training thread from now on."""
        if self._pid != os.getpid():
            return
        self.window.flaw, self.thread = READ_AHEAD, threading.get_ident()
        self.close()
        self.recorder.clock = self.recorder.device = None  # the other thread may still use this clock

    def _is_outside_passes(self):
        return (self.window is None or self.window.is_counted) and self.is_ready()

    def _discard_counted(self):
        if self.window is not None and self.window.is_counted:
            self.window.name = ""
            self.close()

    def _open(self, **properties):
        if self.recorder.connection is None:
            self._connect()
        window = OpenWindow(used_device(), **properties)
        self._kinds.watch(window)
        self.recorder.open(window)
        self.window = window
        return window

    def _connect(self):
        self._pid, self.thread = os.getpid(), threading.get_ident()
        os.environ.pop("EPOCHMETER_AGENT", None)  # child processes of this one are not measured
        self.recorder.connect()

    def _report_progress(self, steps, now_ns, parts):
        """Send the progress of an epoch; a pass without training steps so far may be an evaluation."""
        window = self.window
        if window is not None and window.training_steps and self.is_ready() and self.recorder.is_first:
            self.recorder.connection.progress(steps, now_ns, None if window.is_counted else parts)

    def _report_trace(self, message):
        """Send the result of the trace, if there is one, and end tracing."""
        if message is not None:
            self.recorder.connection.send(message)
            self.trace = None

    def _close(self):
        window, self.window = self.window, None
        if self.trace is not None:
            self._report_trace(self.trace.close())
        self.recorder.clock.close()
        self._kinds.unwatch()
        self._is_read_ahead = self._is_read_ahead or bool(window.flaw)
        if not window.is_counted:
            has_trained = self._has_optimizer or self._has_backward
            self._takes_single_batches = has_trained and window.batches == 1 and not window.training_steps
        if window.training_steps and not window.flaw and not window.is_counted:
            self.counts_steps = False
        is_first = not self.recorder.epochs
        if is_first and self._has_optimizer:  # else an epoch may have backward passes only
            self.remove_backward_hook()
        # If the script initialized a GPU later, the timestamps of the first steps are from another device.
        reason = window.flaw or (LATE_DEVICE if window.device != used_device() else "")
        name = None if reason else self._kinds.name(window, is_first, self._has_optimizer)
        if name and window.is_counted and is_first:
            reason = NO_PARTS.format(window.limit, "optimizer steps" if self._has_optimizer else "backward passes")
        if reason:
            self.recorder.connection.send(NotMeasured(reason))
        self.recorder.close(window, name)


def describe_error(error):
    return "{}: {}".format(type(error).__name__, error)
