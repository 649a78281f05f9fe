"""Recordings of machines: what is recorded, what is removed from it, and its replay as `machine.root`."""
