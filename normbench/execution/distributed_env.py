"""The environment that torchrun or srun gives a process which is one rank of a run.

Such a process has a device of its own, on whatever node. All of them get the same command line, of
one cell: rank 0 decides and keeps the run's files, the others train with it.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from normbench.config.plan import read_number
from normbench.errors import BadInput

#: Ports for rank 0 of runs in Slurm jobs; which one follows from the number of the job.
_PORTS = range(20_000, 30_000)


#: Variables by which torchrun tells a process which rank of which run it is; Lightning reads them.
VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
)  # fmt: skip


@dataclass(frozen=True)
class DistributedEnv:
    """A rank of a run, by its `VARIABLES`."""

    variables: dict[str, str]

    @property
    def rank(self) -> int:
        return int(self.variables["RANK"])

    @property
    def world_size(self) -> int:
        return int(self.variables["WORLD_SIZE"])

    @property
    def local_world_size(self) -> int:
        """Number of ranks on this node."""
        return int(self.variables["LOCAL_WORLD_SIZE"])


def distributed_env(environment: Mapping[str, str] = os.environ) -> DistributedEnv | None:
    """Return the place of this process among those of torchrun or srun; None if it is alone.

    Raises:
        BadInput: Slurm has started an uneven number of processes on the nodes, or does not tell
            the names of the nodes; or a variable is missing or no number.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        env = DistributedEnv({name: environment[name] for name in VARIABLES if name in environment})
        if read_number(environment, "WORLD_SIZE") < 2:
            return None
        for rank, size in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
            if read_number(environment, rank) >= read_number(environment, size):
                raise BadInput(
                    f"{rank}={environment[rank]} is not below {size}={environment[size]}"
                )
        read_number(environment, "MASTER_PORT")
        return env
    tasks = "SLURM_STEP_NUM_TASKS"
    if "SLURM_STEP_ID" in environment and read_number(environment, tasks, 1) > 1:
        return _from_slurm(environment)
    return None


def slurm_job_id(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the id of the Slurm job that this process belongs to; None outside of Slurm."""
    if array := environment.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{environment.get('SLURM_ARRAY_TASK_ID', '')}"
    return environment.get("SLURM_JOB_ID")


def _from_slurm(environment: Mapping[str, str]) -> DistributedEnv:
    tasks, nodes, job, step, *_ = (
        read_number(environment, name)
        for name in (
            "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_JOB_ID", "SLURM_STEP_ID",
            "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID",
        )
    )  # fmt: skip
    if not nodes or tasks % nodes:
        raise BadInput(
            f"{tasks} tasks on {nodes} nodes: every node needs the same number of tasks, as in "
            "srun -N2 -n8"
        )
    # Steps of a job may run at the same time, and jobs with neighbouring numbers, too.
    port = _PORTS[(job + 7 * step) % len(_PORTS)]
    return DistributedEnv(
        {
            "RANK": environment["SLURM_PROCID"],
            "WORLD_SIZE": str(tasks),
            "LOCAL_RANK": environment["SLURM_LOCALID"],
            "LOCAL_WORLD_SIZE": str(tasks // nodes),
            "GROUP_RANK": environment["SLURM_NODEID"],
            "GROUP_WORLD_SIZE": str(nodes),
            "MASTER_ADDR": _hostnames(environment.get("SLURM_STEP_NODELIST", ""))[0],
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": f"{job}.{step}",
            "TORCHELASTIC_USE_AGENT_STORE": "False",  # no agent of torchrun serves at that port
        }
    )


def _hostnames(nodelist: str) -> list[str]:
    """Return the names in a list of nodes in Slurm's notation, such as node[07-08]."""
    try:
        scontrol = subprocess.run(
            ["scontrol", "show", "hostnames", nodelist], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise BadInput(f"scontrol cannot list the nodes {nodelist}: {error}") from error
    if names := scontrol.stdout.split():
        return names
    raise BadInput(f"scontrol lists no hosts for SLURM_STEP_NODELIST={nodelist}")
