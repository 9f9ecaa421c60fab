"""Data sets and their augmentations."""
