"""Datasets, made ready on a storage: downloaded, verified, written, never half there."""
