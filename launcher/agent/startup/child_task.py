"""Work that may block, done in a forked child while the agent's loop goes on."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any, Callable, Dict, Optional

from hostmesh.launcher.agent.linux import die_with_parent


class ChildTask:
    """`work` returns what JSON can say; `then` gets that, or None and the problem."""

    def __init__(
        self, work: Callable[[], Any], then: Callable[[Any, Optional[str]], None], limit: float, what: str
    ) -> None:
        self.then, self.what, self.limit = then, what, limit
        self.deadline = time.monotonic() + limit
        self.fd, write = os.pipe()
        self._answer = b""
        agent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _work_and_leave(agent, work, write)
        os.close(write)

    def hear(self) -> bool:
        """True when it has ended."""
        data = os.read(self.fd, 1 << 16)
        self._answer += data
        return not data

    def finish(self) -> None:
        """Nobody may watch the descriptor any more: `then` may begin something that gets its number."""
        os.close(self.fd)
        try:
            answer: Dict[str, Any] = json.loads(self._answer)
        except ValueError:
            answer = {"problem": f"{self.what} ended without an answer"}
        self.then(answer.get("result"), answer.get("problem"))

    def expire(self) -> None:
        """`finish` is next: nobody waits for the child's end, which does not come while it waits for a hung disk."""
        problem = f"{self.what} took longer than {self.limit:g} s; does the disk there answer?"
        self._answer = json.dumps({"problem": problem}).encode()
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _work_and_leave(agent: int, work: Callable[[], Any], write: int) -> None:
    try:
        try:
            part_from(agent)
            answer = {"result": work()}
        except Exception as error:
            answer = {"problem": str(error) or type(error).__name__}
        with os.fdopen(write, "wb") as pipe:
            pipe.write(json.dumps(answer).encode())
    finally:
        os._exit(0)


def part_from(agent: int) -> None:
    """For a fresh child of the agent: nothing it prints may reach the stream, and no signal is the agent's any more."""
    die_with_parent(agent)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
