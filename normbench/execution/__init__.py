"""From cells to rows: start worker processes, train in them, and handle their failures.

Begin with `dispatch.start`, which a command calls, and `sweep.Sweep`, which takes all of its cells:
`preflight` checks them, `local_scheduler` or `slurm` starts a job for each, and `worker` trains a
job in a `process_group`, one `worker_process` per device.

    refuse a cell, and say why        preflight
    train each computation once       reuse
    order, slots, GPUs, seeds         local_scheduler
    out of memory: retry in parts     local_scheduler.LocalScheduler.handle_out_of_memory
    locks, checkpoints, the row       worker
    the first of several failures     process_group
    killed, interrupted, Ctrl-C       worker_process, local_scheduler.LocalScheduler.stop
    the seeds to train next           more_seeds, forecast, missing_cells
"""
