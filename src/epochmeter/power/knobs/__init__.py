"""Settings of the machine that limit power, one a file: turned for a run, and put back."""
