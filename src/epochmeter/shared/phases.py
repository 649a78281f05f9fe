"""Phases of the compute of a training step, and the rules by which its time belongs to them."""

PREPARATION = "preparation_s"
FORWARD = "forward_s"
LOSS = "loss_s"
BACKWARD = "backward_s"
OPTIMIZER = "optimizer_s"
OTHER = "other_compute_s"
PHASES = (PREPARATION, FORWARD, LOSS, BACKWARD, OPTIMIZER, OTHER)
"""By their metrics. Their sum is the compute; a phase that is not known is part of the last one."""

WITHIN = {
    (BACKWARD, FORWARD): BACKWARD,  # activation checkpointing computes it again
    (BACKWARD, OPTIMIZER): OPTIMIZER,  # a step in a hook of a gradient
    (FORWARD, BACKWARD): BACKWARD,  # a model that differentiates, as for forces or a gradient penalty
    (FORWARD, OPTIMIZER): OPTIMIZER,
    (OPTIMIZER, FORWARD): FORWARD,  # a closure, as of L-BFGS
    (OPTIMIZER, BACKWARD): BACKWARD,
}
"""The phase of a part within another one. Parts of the same kind within each other are one."""

BATCH = "batch"  # its arrival
BETWEEN = {
    (BATCH, FORWARD): PREPARATION,
    (FORWARD, BACKWARD): LOSS,
}
"""The phase of the time from the end of one part to the begin of the next one; of other pairs, it is `OTHER`."""
