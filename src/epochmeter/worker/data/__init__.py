"""Data for training: a dataset that is ready is opened, its images become tensors, a loader batches them."""
