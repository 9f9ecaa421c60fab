"""What the tests share.

`cells` composes cells from words of a command line, `commands` types the fixtures that run one,
`processes` watches and stops processes, `rows` makes rows, `layers` makes layers and their inputs,
`dataset_files` writes every data set's official files, `covering` picks few rows of many factors,
`fake_wandb` is a W&B server, `local_slurm` a Slurm of one node. `plan_training` runs inside the
ranks of a training plan, `compile_kernels` compiles Triton kernels without a GPU.
"""
