"""The environment that torchrun or srun gives a process which is one rank of a run.

Such a process has a device of its own, on whatever node. All of them get the same command line, of
one cell: rank 0 decides and keeps the run's files, the others train with it.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from normbench.errors import BadInput

#: Ports for rank 0 of runs in Slurm jobs; which one follows from the number of the job.
_PORTS = range(20_000, 30_000)


@dataclass(frozen=True)
class DistributedEnv:
    """Rank `rank` of `world_size`, and rank `local_rank` of `local_world_size` on its node."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    master_address: str
    master_port: str
    run_id: str
    uses_agent_store: bool  # the agent of torchrun already serves at that port

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that torchrun would set."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self.node_rank),
            "GROUP_WORLD_SIZE": str(self.num_nodes),
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": self.master_port,
            "TORCHELASTIC_RUN_ID": self.run_id,
            "TORCHELASTIC_USE_AGENT_STORE": str(self.uses_agent_store),
        }


def distributed_env(environment: Mapping[str, str] = os.environ) -> DistributedEnv | None:
    """Return the place of this process among those of torchrun or srun; None if it is alone.

    Raises:
        BadInput: Slurm has started an uneven number of processes on the nodes, or does not tell
            the names of the nodes.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        return _from_torchrun(environment)
    if "SLURM_STEP_ID" in environment and int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        return _from_slurm(environment)
    return None


def slurm_job_id(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the id of the Slurm job that this process belongs to; None outside of Slurm."""
    if array := environment.get("SLURM_ARRAY_JOB_ID"):
        return f"{array}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment.get("SLURM_JOB_ID")


def _from_torchrun(environment: Mapping[str, str]) -> DistributedEnv | None:
    if int(environment["WORLD_SIZE"]) == 1:
        return None
    return DistributedEnv(
        rank=int(environment["RANK"]),
        world_size=int(environment["WORLD_SIZE"]),
        local_rank=int(environment["LOCAL_RANK"]),
        local_world_size=int(environment["LOCAL_WORLD_SIZE"]),
        node_rank=int(environment["GROUP_RANK"]),
        num_nodes=int(environment["GROUP_WORLD_SIZE"]),
        master_address=environment["MASTER_ADDR"],
        master_port=environment["MASTER_PORT"],
        run_id=environment["TORCHELASTIC_RUN_ID"],
        uses_agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _from_slurm(environment: Mapping[str, str]) -> DistributedEnv:
    tasks = int(environment["SLURM_STEP_NUM_TASKS"])
    nodes = int(environment["SLURM_STEP_NUM_NODES"])
    if tasks % nodes:
        raise BadInput(
            f"{tasks} tasks on {nodes} nodes: every node needs the same number of tasks, as in "
            "srun -N2 -n8"
        )
    job, step = int(environment["SLURM_JOB_ID"]), environment["SLURM_STEP_ID"]
    return DistributedEnv(
        rank=int(environment["SLURM_PROCID"]),
        world_size=tasks,
        local_rank=int(environment["SLURM_LOCALID"]),
        local_world_size=tasks // nodes,
        node_rank=int(environment["SLURM_NODEID"]),
        num_nodes=nodes,
        master_address=_hostnames(environment["SLURM_STEP_NODELIST"])[0],
        # Two steps of a job may run at the same time, and each needs two ports.
        master_port=str(_PORTS[(2 * job + 14 * int(step)) % len(_PORTS)]),
        run_id=f"{job}.{step}",
        uses_agent_store=False,
    )


def _hostnames(nodelist: str) -> list[str]:
    """Return the names in a list of nodes in Slurm's notation, such as node[07-08]."""
    try:
        scontrol = subprocess.run(
            ["scontrol", "show", "hostnames", nodelist], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise BadInput(f"scontrol cannot list the nodes {nodelist}: {error}") from error
    return scontrol.stdout.split()
