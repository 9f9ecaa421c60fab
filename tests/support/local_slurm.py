"""A real Slurm of one node on this machine for as long as some tests need it, without systemd."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

BINARIES = ("munged", "slurmctld", "slurmd", "sinfo", "squeue", "scancel", "srun", "setpriv")
#: Debian keeps the daemons where not everybody's PATH looks.
PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
#: Seconds that daemons may take to serve, and jobs and daemons to end.
PATIENCE = 30

# cred_expire: a requeued job waits (BeginTime) until the credential of its start before must have
# expired, one second longer than credentials live: 121 s as Slurm comes, 6 s here. Below 5 Slurm
# warns and takes its default. Who is in a hurry waits until the job is pending and says `scontrol
# update jobid=ID StartTime=now+2`. Never `now`: started in the second in which it was stopped, a
# job is taken for a copy of itself, and fails with no words ("Job credential revoked").
# SchedulerParameters: or else the schedulers look for what has become due every 30 and 60 s.
# config_overrides: the node has the CPUs that stand here, whatever the machine has. Only they are
# handed out (CR_Core): memory can be asked for, but holds no job back.
# Accounting wants a database, so there is none, and no sacct.
CONFIGURATION = """\
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
JobRequeue=1
KillWait=5
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=64000
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def unavailable() -> str:
    """Why no Slurm can be started here; empty if one can."""
    if os.geteuid() != 0:
        return "a Slurm of our own needs root"
    missing = [name for name in BINARIES if shutil.which(name, path=PATH) is None]
    return f"no {', '.join(missing)}: apt-get install slurm-wlm munge" if missing else ""


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """A Slurm that writes below `folder` alone; yields the variables that its clients need.

    The folder is to be new, and its path short enough for sockets: 80 characters.
    """
    folder = folder.resolve()
    clients = {"SLURM_CONF": str(folder / "slurm.conf")}
    environment = {**os.environ, **clients, "PATH": PATH}
    with ExitStack() as stack:
        daemons: list[subprocess.Popen[bytes]] = []

        def start(*command: str) -> None:
            daemons.append(stack.enter_context(_daemon(command, folder, environment)))

        def wait(reached: Callable[[], bool]) -> None:
            if not until(reached, lambda: any(daemon.poll() is not None for daemon in daemons)):
                raise RuntimeError(f"Slurm does not start.\n{_logs(folder)}")

        _configure(folder)
        stack.callback(until, lambda: not _kill_leftovers(folder))
        # force: a folder of tests may be closed to other users, who then do not reach the socket.
        files = [f"--{kind}-file=munge.{kind}" for kind in ("key", "seed", "pid")]
        start("munged", "--foreground", "--force", "--socket=munge.socket", *files)
        wait((folder / "munge.socket").exists)
        start("slurmctld", "-D")
        start("slurmd", "-D")
        wait(lambda: _say(environment, "sinfo", "-h", "-o", "%T") == "idle\n")
        stack.callback(until, lambda: _cancelled(environment))
        yield clients


def _configure(folder: Path) -> None:
    for part in (folder, folder / "state", folder / "spool"):
        part.mkdir(mode=0o755, parents=True, exist_ok=True)
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    # Both are held until both are known, or they might be the same.
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as two:
        ports = [server.getsockname()[1] for server in (one, two)]
    host = socket.gethostname().split(".")[0]
    text = CONFIGURATION.format(folder=folder, host=host, ports=ports)
    (folder / "slurm.conf").write_text(text)


@contextmanager
def _daemon(
    command: tuple[str, ...], folder: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon as our child: its end can be waited for, which a pid file does not offer.

    setpriv ends it with us even if we are killed; in a session of its own it hears no Ctrl-C.
    """
    with (folder / f"{command[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(reached: Callable[[], bool], hopeless: Callable[[], bool] = lambda: False) -> bool:
    """Whether `reached` came true in time, and before it was hopeless."""
    end = time.monotonic() + PATIENCE
    while not (there := reached()) and not hopeless() and time.monotonic() < end:
        time.sleep(0.1)
    return there


def _say(environment: Mapping[str, str], *command: str) -> str:
    """What a client prints, or complains."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.stdout + done.stderr


def _cancelled(environment: Mapping[str, str]) -> bool:
    """KILL comes first, because a job that heeds no TERM would be given its KillWait."""
    _say(environment, "scancel", "--me", "--full", "--signal=KILL")
    _say(environment, "scancel", "--me")
    return not _say(environment, "squeue", "-h")


def _kill_leftovers(folder: Path) -> bool:
    """Kill what daemons leave: steps without a controller, and processes that detached themselves.

    Slurm without cgroups finds the processes of a job by descent, so it loses one whose parent has
    ended. It still has the environment of its job, which no process of the tests has.
    """
    found = False
    marks = (f"SLURM_CONF={folder}/slurm.conf\0".encode(), b"SLURM_JOB_ID=")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone meanwhile
            of_job = all(mark in (process / "environ").read_bytes() for mark in marks)
            # A step has written its title over its environment, but is where the daemon was.
            step = (process / "comm").read_text().startswith("slurm")
            if of_job or (step and (process / "cwd").readlink() == folder):
                os.kill(int(process.name), signal.SIGKILL)
                found = True
    return found


def _logs(folder: Path) -> str:
    logs = sorted(folder.glob("*.log"))
    ends = [log.read_text(errors="replace").splitlines()[-15:] for log in logs]
    return "\n".join("\n".join((f"{log.name}:", *end)) for log, end in zip(logs, ends, strict=True))
