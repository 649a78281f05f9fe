"""Iterators over a script's data that deliver the same batches and errors as without the agent."""

import functools
import signal
import traceback
from threading import get_ident

from epochmeter.worker.device import sample_count
from epochmeter.worker.timeline import perf_counter_ns

READ_AHEAD = "the pass was discarded: another thread requests the batches, so that waits for data are not known"


class Wrapper:
    """Has the length of another object, and its attributes except special ones."""

    def __init__(self, wrapped):
        self._wrapped = wrapped

    def __len__(self):
        return len(self._wrapped)

    def __getattr__(self, name):
        if name.startswith("__") or "_wrapped" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._wrapped, name)


class MeasuredIterator(Wrapper):
    """Iterator over a loader, around the loader's own iterator, that times its batches."""

    def __init__(self, agent, window, iterator):
        super().__init__(iterator)
        self._agent, self._window, self._clock = agent, window, agent.recorder.clock

    def __iter__(self):
        return self

    def __next__(self):
        # Runs in every step with cold CPU caches, like `Agent.optimizer_stepped`: a call takes about a microsecond.
        agent, window, clock = self._agent, self._window, self._clock
        if (
            window is not agent.window
            or window is None
            or window.batches == window.limit
            or get_ident() != agent.thread
        ):
            return self._fetch_rarely()
        is_fetched = False
        try:
            if agent.trace is not None:
                agent.trace_step(window)
            batch = clock.fetch(self._wrapped)
            is_fetched = True
            window.batches += 1
            if window.samples is not None:
                try:
                    window.samples += sample_count(batch)
                except Exception:  # a batch may be any object
                    window.samples = None
        except BaseException as error:
            if clock.is_fetching:
                self._end(error)
                del self  # the error's traceback must not keep the iterator alive: the window ends with it
                raise
            if agent.is_of_script(error):
                raise
            if not is_fetched:
                batch = clock.untimed.pop() if clock.untimed else self._fetch()
        return batch

    def _fetch_rarely(self):
        """Return a batch that begins another window, or that is not measured."""
        agent, window = self._agent, self._window
        if window is not None and window is agent.window:
            if agent.is_ready():
                if window.training_steps:
                    self._window, self._clock = agent.renew(window), agent.recorder.clock
                else:
                    window.limit = None  # an evaluation is one window
                return next(self)
            # The next training step closes the window: only the thread that trains may do it.
            window.flaw, window.is_exhausted, window.length = READ_AHEAD, True, window.batches
        self._window = None
        return self._fetch()

    def _fetch(self):
        """Return the next batch, unmeasured."""
        was_fetching, self._agent.is_fetching = self._agent.is_fetching, True
        try:
            return next(self._wrapped)
        finally:
            self._agent.is_fetching = was_fetching

    def _end(self, error):
        """End the measured pass at the loader's end; after another error, the script may request the next batch."""
        self._clock.is_fetching = False
        if isinstance(error, StopIteration):
            window, self._window = self._window, None
            self._agent.end_pass(window)
        else:
            self._window.failed_at = self._window.batches

    def __del__(self):
        window = self.__dict__.get("_window")
        if window is not None and window is self._agent.window and self._agent.is_ready():
            self._agent.guarded(self._stop)
            self._agent.close(window)

    def _stop(self):
        """End the step, then the loader's iterator, whose workers stop within the window."""
        self._clock.end_step()
        requested_ns = perf_counter_ns()
        self._wrapped = None
        self._clock.end(requested_ns)


class InnerIterator(MeasuredIterator):
    """Iterator over a loader within a pass over another one, which it notifies of requests.

    The script may have left the earlier pass, whose window is `outer`. Then `properties` are those of a window of this
    pass, else None. It replaces `outer` if the earlier pass has ended, or if the script has trained on a batch of this
    pass and requests the next batch. If each step requests a batch of this pass before one of the earlier pass, as with
    `zip(loader, itertools.cycle(other))`, `outer` becomes the window of this pass.
    """

    _step = None  # step of the outer pass at the last request
    _trained = None  # training steps of the outer pass at the last request; None before the first request

    def __init__(self, agent, iterator, outer, properties):
        super().__init__(agent, None, iterator)
        self._outer, self._properties = outer, properties

    def _fetch_rarely(self):
        if self._window is not None:
            return super()._fetch_rarely()
        agent, outer, earlier = self._agent, self._outer, self._step
        self._step = agent.inner_step(earlier)
        if self._properties is not None and agent.is_ready():
            is_first = self._trained is None
            has_trained = not is_first and outer.training_steps > self._trained
            if (earlier, self._step) == ((outer, 0), (outer, 1)):  # `outer` had its first batch after this pass
                self._window = agent.take_over(outer, self._properties)
            elif (has_trained and self._step == earlier) or (is_first and agent.window is None):
                properties = dict(self._properties, is_partial=not is_first)  # its first batch is part of `outer`
                self._window = agent.replace_pass(outer, self._trained, properties)
            if self._window is not None:
                self._clock, self._properties = agent.recorder.clock, None
                return next(self)
            self._trained = outer.training_steps
        return self._fetch()


def is_from_signal_handler(error):
    """Return whether an exception comes from the script's own handler of a signal that arrived in the agent's code."""
    handlers = list(filter(callable, map(signal.getsignal, range(1, signal.NSIG))))
    handlers += [handler.func for handler in handlers if isinstance(handler, functools.partial)]
    functions = [*handlers, *(type(handler).__call__ for handler in handlers)]
    codes = {getattr(function, "__code__", None) for function in functions}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
