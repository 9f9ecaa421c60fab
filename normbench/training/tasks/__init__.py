"""What a network predicts: one module for each task of conf/task/.

`task` says what the others have in common. Losses are those of the workers: image k of a forward
pass belongs to worker k mod W (`normbench.norms.workers`).
"""
