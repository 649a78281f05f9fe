"""Data for training: open a dataset, preprocess its samples and batch them."""
