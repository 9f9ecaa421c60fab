"""Studies: rows that are kept as evidence in one file, and that others can extend and check.

    files    join rows of sweeps and of other studies; write the runs of a study as folders again
    verify   train a random sample of a study again, and compare

The file itself is written and read by `normbench.results`; `normbench.report` makes its page.
"""
