"""Sweeps on a Slurm cluster: each run is a job on a node; this host submits, waits and publishes.

A job writes the record of its run only. The same command finds its jobs again in `slurm/jobs.json`.
"""
