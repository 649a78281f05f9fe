"""Prepare datasets on a storage device: download, verify and write them atomically."""
