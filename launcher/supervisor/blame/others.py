"""What became of the processes beside the culprit, in sentences; pure."""

from __future__ import annotations

from dataclasses import dataclass

from hostmesh.launcher.words import agree, count_things


@dataclass(frozen=True)
class Others:
    """What became of the processes beside the culprit: in all, failed in the same way, succeeded, lost with a host.

    The rest was stopped because of the culprit; unless they `went_on`, and failed by themselves.
    """

    count: int
    alike: int = 0
    succeeded: int = 0
    lost: int = 0
    went_on: bool = False

    @property
    def rest(self) -> int:
        return self.count - self.alike - self.succeeded - self.lost

    def tell(self) -> list[str]:
        told = []
        if self.alike and self.alike < self.count:
            told.append(f"{count_others(self.alike)} failed in the same way.")
        if self.rest and self.went_on:
            told.append(f"{count_others(self.rest)} failed as well.")
        elif self.rest:
            told.append(f"{count_others(self.rest)} {agree('was', self.rest)} stopped.")
        if self.lost:
            told.append(f"{count_others(self.lost)} {agree('was', self.lost)} lost with a host.")
        if self.went_on and self.succeeded:
            told.append(f"{count_others(self.succeeded)} succeeded.")
        return told


def count_others(count: int) -> str:
    return count_things(count, "other process")
