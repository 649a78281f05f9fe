"""The machine that trains: what it is, and what its caches hold."""
