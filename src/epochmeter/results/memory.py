"""Memory of a training step by kind, and the largest batch that its device can hold."""

from contextlib import suppress

from epochmeter.shared.record import MEMORY, Record
from epochmeter.shared.record_files import read_document
from epochmeter.shared.types import Document

PER_SAMPLE = ("inputs", "activations", "temporary")
"""Kinds that grow with the batch."""
OTHERS = ("peak_bytes", "reserved_bytes", "outside_torch_bytes", "capacity_bytes")


def read_memory(record: Record) -> Document | None:
    """Return the memory of a training step, as the training process wrote it; None if the record has none."""
    with suppress(OSError, ValueError):
        memory: Document = read_document(record.folder / MEMORY)
        return memory
    return None


def memory_metrics(record: Record, batch: int) -> dict[str, float]:
    """Return the `memory/` metrics of a record; empty if it has no memory by kind."""
    memory = read_memory(record)
    if memory is None:
        return {}
    kinds: dict[str, int] = memory["kinds"]
    metrics = {name: memory[name] for name in OTHERS if name in memory}
    metrics |= {f"{kind}_bytes": size for kind, size in kinds.items()}
    per_sample = sum(kinds[kind] for kind in PER_SAMPLE) / batch
    if per_sample and "outside_torch_bytes" in memory:
        fixed = sum(size for kind, size in kinds.items() if kind not in PER_SAMPLE) + memory["outside_torch_bytes"]
        metrics["largest_batch"] = max(0, int((memory["capacity_bytes"] - fixed) / per_sample))
    return {f"memory/{name}": value for name, value in metrics.items()}
