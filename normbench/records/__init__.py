"""Files of runs beside their rows, and the checks of rows. Standard library only.

    history      history.csv, the training curve
    hits         test_hits.bin, which test images its network classified correctly
    probes       probes/KIND.csv, what probes have measured in its network
    csv_table    the lines of such files
    studies      the file of a study, with the rows, curves and test hits of many runs
    row_checks   rows of older schemas, and rows that no run can have left
    json_fields  the types of the fields of a row

Rows themselves are read and written by `normbench.results`.
"""
