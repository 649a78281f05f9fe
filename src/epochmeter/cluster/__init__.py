"""Sweeps on a Slurm cluster: each run is a job on a node; this host submits, waits and publishes.

A job runs the command that a person would type on its node, with the run's folder. It writes the record only; the
database is used by this host only. Submitted jobs are listed in `slurm/jobs.json` in the sweep's folder, so that the
same command finds them again.
"""
