"""The command `python -m normbench.bench`, which times layers, steps, sweeps and loaders.

Begin with `__main__`: it names the kinds and their options. `measure` has what they share;
`plans_and_loaders` times both in worker processes, which run `in_worker_process`; every other
module is one kind.
"""
