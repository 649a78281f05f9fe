"""Reports on finished runs, from their records, which are only read."""
