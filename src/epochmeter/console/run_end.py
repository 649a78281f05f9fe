"""Output at the end of a run: its epochs, notes and errors; at last its bottleneck, the next steps and the places."""

from collections.abc import Mapping, Sequence
from typing import Any

from epochmeter.config.schema import Job
from epochmeter.console import sentences
from epochmeter.console.console import Terminal, with_severity
from epochmeter.console.sweep_lines import run_line
from epochmeter.console.tables import epoch_table, valued
from epochmeter.results.bottleneck import read_bottleneck
from epochmeter.results.next_steps import NextStep
from epochmeter.results.power_share import power_share
from epochmeter.results.run_info import OVERSUBSCRIBED
from epochmeter.results.run_result import RunResult
from epochmeter.results.stragglers import straggler_sentence
from epochmeter.results.summary import averaged_epochs, collect_flags, is_averaged


def print_run(terminal: Terminal, windows: Sequence[Mapping[str, Any]], job: Job, result: RunResult) -> None:
    """Print the results of a run, the most important ones last; in a sweep one line, unless `verbose=true`."""
    if terminal.label:
        terminal.info(run_line(terminal.label, result, averaged_epochs(windows, job.warmup_epochs)))
        terminal.failed(result)
        return
    has_epochs = any(window["window"] == "epoch" for window in windows)
    if has_epochs:
        terminal.print_table(epoch_table(windows, result.metrics, job.warmup_epochs, result.trainings))
        terminal.console.print()
        _print_totals(terminal, job, result)
    if job.measure.pid is None:
        terminal.info("\n".join(sentences.other_window_lines(windows)))
    else:
        terminal.info(sentences.process_line(windows, result.metrics, job.measure.pid), style="bold")
        terminal.info(sentences.footprint_line(result.metrics, job.footprint.currency))
    for note in result.notes:
        terminal.warn(with_severity(note, "note: "))
    terminal.failed(result)
    if not result.of_sweep:
        terminal.print_missing([result])
    if has_epochs:
        terminal.info(_verdict(windows, job, result), style="bold")
        terminal.info(sentences.launch_line(result.metrics))
        if share := power_share(result.metrics.get):
            terminal.info(share.sentence)
        terminal.info(straggler_sentence(result.straggler), style="bold")
    if not result.of_sweep:
        _print_next_steps(terminal, result.next_steps)
        if result.folder:
            terminal.console.print()
        terminal.print_places([result])


def _print_totals(terminal: Terminal, job: Job, result: RunResult) -> None:
    metrics = result.metrics
    terminal.info(sentences.phases_line(metrics))
    terminal.info(sentences.account_line(metrics))
    terminal.info(sentences.energy_line(metrics))
    terminal.info(sentences.footprint_line(metrics, job.footprint.currency))
    if "throughput/samples_per_s" in metrics:
        rate = valued("throughput/samples_per_s", metrics["throughput/samples_per_s"])
        terminal.info(f"Throughput of {metrics['throughput/steps']:.0f} steps: {rate}.")
    mfu = sentences.mfu_line(metrics, result.mfu, job.roofline.flops, is_lower_bound=result.is_lower_bound)
    terminal.info(mfu)
    terminal.info(sentences.bleu_line(metrics))
    terminal.info(sentences.target_line(metrics), style="green")


def _verdict(windows: Sequence[Mapping[str, Any]], job: Job, result: RunResult) -> str:
    """Return the bottleneck of the mean epoch, and whether the processor was oversubscribed in one of its epochs."""
    averaged = [line for line in windows if line["window"] == "epoch" and is_averaged(line, job.warmup_epochs)]
    bottleneck = read_bottleneck(result.bottleneck, result.metrics)
    return sentences.bottleneck_line(bottleneck, is_oversubscribed=OVERSUBSCRIBED in collect_flags(averaged))


def _print_next_steps(terminal: Terminal, steps: Sequence[NextStep]) -> None:
    """Print what to do next; the lines to paste are not wrapped."""
    if steps:
        terminal.info("Next steps, in this order:")
    for advice, change in sentences.next_step_lines(steps):
        terminal.info(advice)
        terminal.info(change, style="cyan", wraps=False)
