"""Attacks on the commands: command lines, environments and files that nobody should have written.

`judge.faults` says what a command may do, `sandbox` runs one, `command_lines` and `damage` make the
attacks, and `campaign` runs thousands of them (`make faults`).
"""
