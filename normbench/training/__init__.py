"""Training of one network.

Begin with `experiment`, the objects of a run built from its cell, then `trainer.train`.
`lightning_module` has the training step, `evaluation_module` the evaluations of its network,
`sampler` and `datamodule` the images of each worker, `recipe`, `learning_rate` and `regularization`
the training protocol, `seed_stacking` the training of several seeds at once.
"""
