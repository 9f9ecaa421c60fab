"""Tasks of a network: one module for each of conf/task/.

`task` says what the others have in common. Losses are those of the workers: image k of a forward
pass belongs to worker k mod W (`normbench.norms.workers`).
"""
