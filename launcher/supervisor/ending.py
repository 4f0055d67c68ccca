"""The end of a run: every host is stopped, and what is still on its way is taken in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.blame import kinds
from hostmesh.launcher.supervisor.blame import verdict as verdicts
from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.supervisor.hints import name_some
from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.policy import blame
from hostmesh.launcher.supervisor.records import Records
from hostmesh.launcher.supervisor.state.host import HostState, Phase
from hostmesh.launcher.supervisor.state.run_state import RunState

# From the end of a run on: until its processes have ended, and until all that they printed is here. The latter may
# take its time over a slow link; who asked the run to stop does not want to wait for it.
WIND_UP_TIMEOUT = 6.0
OUTPUT_TIMEOUT = {"succeeded": 300.0, "stopped": 3.0}
OUTPUT_TIMEOUT_OTHERWISE = 30.0
# From the end of an attempt on until a host can begin another.
CLEAR_TIMEOUT = 30.0
# Then the verdict is told before all output is here.
TELL_AFTER = 1.0
HINT_EVERY = 10.0


class Ending:
    """`take_in` waits for one entry of the inbox and says whether one came; `lose` gives a host up, and says why."""

    def __init__(
        self,
        state: RunState,
        records: Records,
        channels: Mapping[int, Channel],
        inbox: Inbox,
        take_in: Callable[[], bool],
        lose: Callable[[HostState, str, str], None],
    ) -> None:
        self._state, self._records, self._channels = state, records, channels
        self._inbox, self._take_in, self._lose = inbox, take_in, lose
        self.has_told = False  # the verdict

    def wind_up(self, verdict: Verdict) -> Verdict:
        """Who else failed only becomes known now, so the verdict may say more than before."""
        began = self._inbox.now()
        verdict = self._stop_all(verdict)
        self._await_output(verdict, began)
        return verdict

    def clear(self, verdict: Verdict) -> Verdict | None:
        """Stop all processes, and let the agents stay for another attempt; None where somebody asked for the end. A
        host that does not get clear is lost."""
        began = self._inbox.now()
        verdict = self._stop_all(verdict, stays=True)
        while self._find_unclear() and not self._state.interrupts and self._inbox.now() < began + CLEAR_TIMEOUT:
            self._take_in()
        for host in self._find_unclear() if not self._state.interrupts else ():
            self._lose(host, f"did not end its processes within {CLEAR_TIMEOUT:g} s", "")
        return verdict if not self._state.interrupts else None

    def _find_unclear(self) -> list[HostState]:
        return [host for host in self._state.hosts if host.phase is Phase.RUNNING]

    def _stop_all(self, verdict: Verdict, stays: bool = False) -> Verdict:
        state = self._state
        # Whoever is still there when the grace after a Ctrl-C is over is stuck; after a second one nothing waits.
        was_asked_once = verdict.outcome == "stopped" and len(state.interrupts) == 1
        stuck = len(self._unended()) if was_asked_once and not state.nobody_is_waited_for else 0
        stacks, grace = bool(stuck) or verdict.outcome in ("failed", "host lost", "hang"), state.stop_grace
        culprit = next((f for f in state.failures if f.process_id == verdict.process_id), None)
        if verdict.kind == kinds.DISAGREEMENT:
            culprit = None  # however a process may have ended over it
        if verdict.process_id is not None:
            self._records.mute_all_but(verdict.process_id)  # the others would only complain of a lost peer
        for host in state.with_agent if not stays else self._find_unclear():
            self._channels[host.number].send(wire.Stop(stacks, stays))
        began = self._inbox.now()
        self._await_ends(began + WIND_UP_TIMEOUT)
        if culprit is not None:
            verdict = blame(culprit, state)
        elif stuck:
            where = f"{self._records.run.stacks}/" if self._records.has_stacks else None
            verdict = verdicts.not_stopped(verdict, stuck, grace, where)
        return verdict

    def _await_ends(self, deadline: float) -> None:
        interrupts = max(len(self._state.interrupts), 1)
        while self._unended() and self._inbox.now() < deadline and len(self._state.interrupts) <= interrupts:
            self._take_in()

    def _await_output(self, verdict: Verdict, began: float) -> None:
        """Over a slow link what processes printed comes long after their end."""
        limit = began + OUTPUT_TIMEOUT.get(verdict.outcome, OUTPUT_TIMEOUT_OTHERWISE)
        interrupts, hinted = len(self._state.interrupts), began
        heard = self._inbox.now()
        while self._state.with_agent and self._inbox.now() < min(limit, heard + WIND_UP_TIMEOUT):
            if self._take_in():
                heard = self._inbox.now()
            if len(self._state.interrupts) > interrupts:
                break
            now = self._inbox.now()
            if now - began > TELL_AFTER and verdict.exit_code != 0 and not self.has_told:
                self.has_told = True
                self._records.note(f"launch: {verdict.text()}")
            if now - hinted > HINT_EVERY:
                hinted = now
                self._records.note(f"launch: still fetching what processes on {self._name_hosts()} printed")
        if left := self._unfetched():
            names = " ".join(map(str, left))
            self._records.note(f"launch: not all that process {names} printed was fetched from {self._name_hosts()}")

    def _name_hosts(self) -> str:
        return name_some([host.name for host in self._state.with_agent])

    def _unended(self) -> list[int]:
        """Processes within reach of which no exit is known."""
        return [process_id for process_id in self._within_reach() if process_id not in self._state.exits]

    def _unfetched(self) -> list[int]:
        """Processes of whose output more may be on a host that still has its agent."""
        return [process_id for process_id in self._within_reach() if not self._records.logs[process_id].ended]

    def _within_reach(self) -> list[int]:
        """Processes that were to start, on hosts that have an agent."""
        ids = (process_id for host in self._state.with_agent for process_id in host.process_ids)
        return [process_id for process_id in ids if process_id in self._records.logs]
