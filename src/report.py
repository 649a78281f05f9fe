"""Compare the runs of a sweep: `python src/report.py --help`."""

from epochmeter.__main__ import start

if __name__ == "__main__":
    start("report")
