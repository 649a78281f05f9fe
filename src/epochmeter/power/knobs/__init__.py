"""Device settings that affect power, one per file: changed for a run and restored afterwards."""
