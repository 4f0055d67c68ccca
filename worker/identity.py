"""What a process is told about itself, to and from the environment; stdlib only, Python 3.9 or newer."""

from __future__ import annotations

import os
import signal
from typing import Dict, Mapping, NamedTuple, Optional

RUN_ID = "HOSTMESH_RUN_ID"
ATTEMPT = "HOSTMESH_ATTEMPT"
HOST = "HOSTMESH_HOST"
PROCESS_ID = "HOSTMESH_PROCESS_ID"
NUM_PROCESSES = "HOSTMESH_NUM_PROCESSES"
LOCAL_PROCESS_ID = "HOSTMESH_LOCAL_PROCESS_ID"
# How many processes of the run are on this host.
LOCAL_PROCESSES = "HOSTMESH_LOCAL_PROCESSES"
COORDINATOR_ADDRESS = "HOSTMESH_COORDINATOR_ADDRESS"
# How many seconds a process has between the request to stop and SIGKILL.
GRACE = "HOSTMESH_GRACE"
# In the environment of an agent: the descriptor that is to be the stdin of the one process it starts.
STDIN = "HOSTMESH_STDIN"
# Set by the agent, because only it knows its folder: where a process sends facts, dumps its stacks, keeps its record.
FACTS_SOCKET = "HOSTMESH_FACTS_SOCKET"
STACKS_FILE = "HOSTMESH_STACKS_FILE"
RECORD_FILE = "HOSTMESH_RECORD_FILE"
# A folder in /dev/shm that the agent made, where processes keep snapshots; it goes when the run ends.
SNAPSHOTS = "HOSTMESH_SNAPSHOTS"
# `all` where the launcher keeps what every process reports, and not only what process 0 does.
METRICS = "HOSTMESH_METRICS"
# `off` where nobody wants to know whether the processes compile the same programs.
PROGRAMS = "HOSTMESH_PROGRAMS"
# How much of the rows that processes load is compared between them: one of GUARDS.
GUARD = "HOSTMESH_GUARD"
GUARDS = ("sample", "every", "off")
# The beginning of the name of a socket in the agent's folder, where a process is asked for rows once more.
QUESTIONS = "questions"
# The folder of the host's compiled programs, or `off`; and where process 0 notes which of them it has used.
COMPILED = "HOSTMESH_COMPILED"
COMPILED_USED = "HOSTMESH_COMPILED_USED"
# The faults that a process is to do to itself, as JSON; only in a run with --chaos.
CHAOS = "HOSTMESH_CHAOS"
# The user's own settings begin so: they reach processes as any other variable does.
OF_USERS = "HOSTMESH_DATA_"
# A file in the agent's folder: the commands that bring back the network that such a fault took down.
UNDO_NETWORK = "undo-network"
# The pid of the process itself: a program that it starts inherits all variables above, but has another pid.
PID = "HOSTMESH_PID"

# A process that said hello dumps its stacks at this signal; it would kill any other.
DUMP_SIGNAL = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2

# What a process that was asked to stop, saved and left exits with: the same command goes on from there.
EXIT_PREEMPTED = 75

# jax reads it by itself, at the call of initialize(). Its JAX_COORDINATOR_BIND_ADDRESS is not for us to set: jax takes
# it for every cluster, also for one of the script's own.
JAX_COORDINATOR_ADDRESS = "JAX_COORDINATOR_ADDRESS"


class Identity(NamedTuple):
    """What a process knows about itself and its run; `hostmesh.join()` returns it."""

    run_id: str
    attempt: int
    host: str
    process_id: int
    num_processes: int
    local_process_id: int
    coordinator_address: str

    def to_env(self) -> Dict[str, str]:
        return {
            RUN_ID: self.run_id,
            ATTEMPT: str(self.attempt),
            HOST: self.host,
            PROCESS_ID: str(self.process_id),
            NUM_PROCESSES: str(self.num_processes),
            LOCAL_PROCESS_ID: str(self.local_process_id),
            COORDINATOR_ADDRESS: self.coordinator_address,
            JAX_COORDINATOR_ADDRESS: self.coordinator_address,
        }

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Optional[Identity]:
        """None for a process that no launcher started."""
        if PROCESS_ID not in env:
            return None
        return cls(
            run_id=env[RUN_ID],
            attempt=int(env[ATTEMPT]),
            host=env[HOST],
            process_id=int(env[PROCESS_ID]),
            num_processes=int(env[NUM_PROCESSES]),
            local_process_id=int(env[LOCAL_PROCESS_ID]),
            coordinator_address=env[COORDINATOR_ADDRESS],
        )
