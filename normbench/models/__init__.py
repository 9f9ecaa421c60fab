"""Architectures as plain modules that take the normalizer as an argument."""
