"""Where a training thread waits for other ranks: in collectives, and at the end of backward passes.

`DistributedDataParallel` exchanges the gradients while they are computed. When a backward pass has computed the last of
them, it waits for the exchanges that are not done. Its own callbacks for that wait follow those of this module, which
are queued when the pass begins. Neither changes a gradient.
"""

import sys
from typing import Any, Callable, Iterator, Optional, Tuple

import torch

FUNCTIONS = (
    "all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all",
    "all_to_all_single", "all_gather_into_tensor", "reduce_scatter_tensor", "all_gather_object", "gather_object",
    "broadcast_object_list", "scatter_object_list", "barrier", "monitored_barrier", "send", "recv",
    "_broadcast_coalesced",
)  # fmt: skip
"""Functions of `torch.distributed` that wait for other ranks, as far as the version of torch has them.

`DistributedDataParallel` copies the model's buffers by the last one, in forward passes.
"""
OLD_TORCH = "torch before 2.0 does not show when a backward pass waits for other ranks"


def is_supported() -> bool:
    """Return whether this version of torch shows when a backward pass has computed its gradients."""
    graph = getattr(torch.autograd, "graph", None)
    return hasattr(getattr(graph, "Node", None), "register_prehook")


def collective_functions() -> Iterator[Tuple[Any, str]]:
    """Yield the places of the functions that wait for other ranks: modules of torch, and names in these."""
    distributed = sys.modules["torch.distributed"]
    for owner in (distributed, getattr(distributed, "distributed_c10d", None)):
        yield from ((owner, name) for name in FUNCTIONS if hasattr(owner, name))


def watch_backward(tensors: Any, act: Optional[Callable[[], None]]) -> Callable[[], object]:
    """Call `act`, if given, when the next backward pass of these tensors has computed its gradients.

    It is called in the thread that ends the pass, on the streams of the thread that began it. Return a function that
    ends this, which is to be called after the pass.
    """
    if isinstance(tensors, (list, tuple)):  # nothing is taken from an iterator
        tensors = tensors[0] if tensors else None
    node = getattr(tensors, "grad_fn", None)
    if node is None or act is None:  # without a node, there is no pass, or one of a single tensor
        return lambda: None

    def queue(gradients: object) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(act)

    remove: Callable[[], object] = node.register_prehook(queue).remove
    return remove
