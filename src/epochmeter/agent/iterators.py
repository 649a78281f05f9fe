"""Iterators over a script's data that deliver the same batches and errors as without the agent."""

import signal

READ_AHEAD = "the pass was discarded: another thread requests the batches, so that waits for data are not known"


class Source:
    """Iterator over a loader's batches that keeps the fetched batch until it is delivered, and the loader's error."""

    def __init__(self, agent, iterator):
        self.agent = agent
        self.iterator = iterator
        self.fetched, self.error = [], None

    def __iter__(self):
        return self

    def __next__(self):
        self.agent.is_fetching = True
        try:
            batch = next(self.iterator)
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.agent.is_fetching = False
        self.fetched = [batch]
        return batch


class LoaderIterator:
    """Iterator over a loader; other attributes are those of the loader's own iterator."""

    def __iter__(self):
        return self

    def __len__(self):
        return len(self._source.iterator)

    def __getattr__(self, name):
        if name.startswith("__") or "_source" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._source.iterator, name)


class InnerIterator(LoaderIterator):
    """Iterator over a loader within a pass over another one, which it notifies of requests."""

    def __init__(self, agent, iterator):
        self._agent, self._source, self._step = agent, Source(agent, iterator), None

    def __next__(self):
        self._step = self._agent.inner_step(self._step)
        return next(self._source.iterator)


class MeasuredIterator(LoaderIterator):
    """Iterator over a loader that times its batches."""

    def __init__(self, agent, window, iterator, waited_ns):
        self._agent, self._window = agent, window
        self._source = Source(agent, iterator)
        self._batches = agent.timed(window, self._source, waited_ns)

    def __next__(self):
        if self._window is not None and not self._agent.is_ready():
            self._window.flaw, self._window, self._batches = READ_AHEAD, None, self._source
        if self._window is not None and self._window.batches == self._window.limit:
            self._window = self._agent.renew(self._window)
            self._batches = self._agent.timed(self._window, self._source) if self._window else self._source
        if self._window is not None:
            self._agent.trace_step(self._window)
        try:
            batch = next(self._batches)
        except BaseException as error:
            if self._window is None:
                raise
            return self._after(error)
        self._source.fetched = []
        return batch

    def _after(self, error):
        """Raise the loader's error, or its end, as without the agent; otherwise return the next batch, unmeasured."""
        window, self._window, self._batches = self._window, None, self._source
        is_of_loader = self._source.error is not None
        self._source.error = None
        if is_of_loader:
            self._agent.end_pass(window, error)
        elif isinstance(error, StopIteration):  # another pass has closed the window
            return next(self._source)
        else:
            self._agent.fail(error)
        # Errors that are not of the agent, such as KeyboardInterrupt.
        if is_of_loader or not isinstance(error, Exception) or is_from_signal_handler(error):
            try:
                raise error
            finally:
                del error  # it would refer to itself by this frame, and keep the loader's iterator alive
        return self._source.fetched.pop() if self._source.fetched else next(self._source)

    def __del__(self):
        if self.__dict__.get("_window") is not None:
            self._agent.close(self._window)


def is_from_signal_handler(error):
    """Return whether an exception comes from the script's own handler of a signal that arrived in the agent's code."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False
