"""Measure a training script: `python src/measure.py --help`."""

from epochmeter.__main__ import start

if __name__ == "__main__":
    start("measure")
