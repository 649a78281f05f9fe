"""Train models as configured: `python src/train.py --help`."""

from epochmeter.__main__ import start

if __name__ == "__main__":
    start("train")
