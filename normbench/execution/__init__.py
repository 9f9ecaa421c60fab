"""From cells to rows: start worker processes, train in them, and handle their failures.

Begin with `dispatch.start`, which a command calls, and `sweep.run`, which takes all of its cells:
`preflight` checks them, `local_scheduler` or `slurm` starts a job for each, and `worker` trains a
job in a `worker_process`, or in a `process_group` of one per device.
"""
