"""What `hosts: {slurm: …}` says, as a frozen value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Slurm:
    nodes: int | None = None  # None inside an allocation: all of its nodes
    partition: str | None = None
    time: str | None = None  # as Slurm writes it: 30, 1:00:00, 2-12
    account: str | None = None
    options: tuple[str, ...] = ()  # further ones of sbatch
    warning: int = 60  # seconds before the time limit at which the processes are asked to save; 0: not at all
    requeue: bool = False  # a job that saved ahead of its end is queued again by itself
    exclusive: bool = True  # whole nodes
    wait: float | None = None  # seconds in the queue after which the job is given up; None: as long as it takes

    def __str__(self) -> str:
        return f"Slurm partition {self.partition}" if self.partition else "Slurm's default partition"
