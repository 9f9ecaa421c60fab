"""The command `python -m normbench.bench`, which times layers, steps, sweeps and loaders.

Begin with `__main__`: it names the kinds and their options. `measure` has what they share; `run`
and `run_process` time plans and loaders in worker processes; every other module is one kind.
"""
