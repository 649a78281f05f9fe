"""Windows of a measured script (epochs, evaluations) from the events that its agent has recorded."""
