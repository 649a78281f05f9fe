"""A sweep that is sent to the nodes of a cluster: each run is a job of Slurm's, and this host waits and tells.

    know which runs are whole, and which jobs of an earlier start are still under way -> send the others, an array for
    each kind of node, by submitit -> wait -> as each ends: what its record says, or Slurm, is published from here

A job is the very command that a person would type on its node, with its run's folder. It leaves a record and nothing
else: the database is this host's alone. What was sent is written down beside the runs, in `slurm/jobs.json`, so that
the same command finds it again.
"""
