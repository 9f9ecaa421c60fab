"""The search for layers that found EvoNorm (Liu et al. 2020): evolution and its control.

    language of the layers        normbench.norms.formulas, normbench.norms.graph
    random layers and mutations   space
    the next candidate            evolution
    duplicates                    fingerprint
    scores, rejection, cost       scoring, stability, cost
    records in the search folder  candidates
    processes and Slurm jobs      run, worker
    results                       results, show, drawings, rerank

Candidate k follows from the seed, k and the records of the candidates up to k - `in_flight`. So any
number of workers up to `in_flight` finds the same candidates, and a killed worker loses only the
candidate that it was training.
"""
