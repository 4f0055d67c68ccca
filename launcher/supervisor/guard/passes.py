"""Whether processes stay in different passes over one loader's data, where nothing is compared any more; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hostmesh.launcher.words import name_processes

# A process that reads ahead begins a pass some steps before others do. So many that each of them has told of since the
# last began one, and they are apart for good.
LASTING_STEPS = 50


class Passes:
    """Of one loader: in which pass each process is."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self._sizes: Counter[int] = Counter()  # how many processes are in each pass
        self._told: Counter[int] = Counter()  # steps, by process, since one of them began a pass
        self._lasting: set[int] = set()  # who has told of enough of them

    def note(self, process_id: int, nth_pass: int) -> None:
        before = self.of.get(process_id)
        if before != nth_pass:
            self.of[process_id] = nth_pass
            self._sizes[nth_pass] += 1
            if before is not None:
                self._sizes -= Counter([before])
            self._told.clear()
            self._lasting.clear()
        elif len(self._sizes) > 1:
            self._told[process_id] += 1
            if self._told[process_id] == LASTING_STEPS:
                self._lasting.add(process_id)

    def are_apart(self, processes: int) -> bool:
        return len(self._lasting) == processes


def tell_apart(of: Mapping[int, int], what: str) -> str:
    by_pass: dict[int, list[int]] = {}
    for process, nth_pass in sorted(of.items()):
        by_pass.setdefault(nth_pass, []).append(process)
    sides = [f"{name_processes(who)} in pass {nth_pass + 1}" for nth_pass, who in by_pass.items()]
    return (
        f"the processes stay in different passes over {what}, so that their rows are not compared: {', '.join(sides)}. "
        "Was it restored, or begun anew, on some of them only?"
    )
