"""Rows to tables and figures. Reads rows only, imports no torch."""
