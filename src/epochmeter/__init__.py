"""Training of deep networks, metered: where the time of every epoch went, and what it cost in joules."""
