"""The energy used during each phase of a window, from samples of power and the intervals of its steps."""
