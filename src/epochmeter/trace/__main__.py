"""Analyze the trace of a run in a process of its own: `python -m epochmeter.trace RUN_FOLDER`."""

import sys
from pathlib import Path

from epochmeter.trace.analysis import analyze_run
from epochmeter.trace.kineto import TraceError

if __name__ == "__main__":
    try:
        analyze_run(Path(sys.argv[1]))
    except TraceError as error:
        sys.exit(str(error))
