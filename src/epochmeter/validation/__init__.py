"""Validation of a machine: what epochmeter measures here, compared with what is known to be true."""
