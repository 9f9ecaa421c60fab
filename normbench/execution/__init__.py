"""From cells to rows: which process trains which cell, when, and what happens if it fails.

Begin with `sweep`, which takes all cells of a command; `scheduler` and `slurm` start the processes,
`worker` is what runs inside of one.
"""
