"""What is done when a host is lost: its agent ended, fell silent, or broke the protocol."""

from __future__ import annotations

from hostmesh.launcher.supervisor.blame import verdict as verdicts
from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.supervisor.going_on.explaining import Explaining
from hostmesh.launcher.supervisor.link.channel import Ended
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.link.liveness import Absence
from hostmesh.launcher.supervisor.records import Records
from hostmesh.launcher.supervisor.reports import Reports
from hostmesh.launcher.supervisor.startup.machine import Startup
from hostmesh.launcher.supervisor.state.host import HostState
from hostmesh.launcher.supervisor.state.run_state import RunState


class Losses:
    def __init__(
        self,
        state: RunState,
        startup: Startup,
        reports: Reports,
        records: Records,
        absence: Absence,
        inbox: Inbox,
        lease: float,
        explaining: Explaining,
    ) -> None:
        self._state, self._startup, self._reports, self._records = state, startup, reports, records
        self._absence, self._inbox, self._lease, self._explaining = absence, inbox, lease, explaining

    def note_end(self, host: HostState, end: Ended) -> None:
        if end.unreachable is None:
            self.lose(host, "lost its agent", end.text)
        elif not host.is_gone:
            self._startup.give_up(host, end.unreachable)
            self._explaining.ask(host)

    def lose(self, host: HostState, why: str, said: str) -> None:
        if host.is_gone:
            return
        logs = self._state.logs
        if self._absence.explains_a_loss:
            why = f"the launcher was away for {self._absence.seconds:.1f} s"
            self._note_loss(host, why, verdicts.launcher_was_away(self._absence.seconds, self._lease, logs))
        elif not host.has_agent:
            self._startup.lose(host, why, said)
            self._explaining.ask(host)
        else:
            from hostmesh.launcher.supervisor.startup.remedies import find_remedies

            said = "\n".join([said, *find_remedies(said)])
            self._note_loss(host, why, verdicts.host_lost(host.name, why, said, logs))
            self._explaining.ask(host)

    def note_warning(self, host: HostState, reason: str) -> None:
        """Processes that save are asked to, and the host is used no more; if nothing runs on it, that is now."""
        self._state.warn(host, reason)
        self._records.tell("host warned", host=host.name, reason=reason)
        saves = self._state.save_seconds is not None
        what = "asked the processes to save" if saves else "no process saves when asked to: they go on until then"
        if self._state.spawned and host.has_seat:
            self._records.note(f"launch: {host.name} will be taken away ({reason}): {what}")
        else:
            self._leave(host)

    def leave_warned(self) -> None:
        """Between attempts: on hosts that will be taken away nothing is started any more."""
        for host in self._state.with_agent:
            if host.notice:
                self._leave(host)

    def _leave(self, host: HostState) -> None:
        why = f"will be taken away: {host.notice}"
        self._note_loss(host, why, verdicts.host_lost(host.name, why, "", self._state.logs))

    def _note_loss(self, host: HostState, why: str, verdict: Verdict) -> None:
        self._state.lose(host, verdict, self._inbox.now())
        self._records.tell("host lost", host=host.name, why=why)
        if not host.has_seat:
            self._records.note(f"launch: {host.name}, which runs no process, {why}")
        self._reports.tell_who_goes_on(f"{host.name} {why}")
