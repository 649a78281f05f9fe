"""The host: hardware facts, gauges, disks, page cache, locks and signals."""
