"""Training of one network: the Lightning module, its images, recipe and checkpoints.

Begin with `trainer`, then `lightning_module` (the training step) and `datamodule` (which worker
sees
which image).
"""
