"""Normalizers: one file per family, each layer a page with formula, forward and reference."""
