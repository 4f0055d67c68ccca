"""Work that may block, done in a forked child while the agent's loop goes on."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any, Callable, Dict, Optional

from launcher.agent.linux import die_with_parent


class Aside:
    """`work` returns what JSON can say; `then` gets that, or None and the problem."""

    def __init__(
        self, work: Callable[[], Any], then: Callable[[Any, Optional[str]], None], limit: float, what: str
    ) -> None:
        self.then, self.what = then, what
        self.deadline = time.monotonic() + limit
        self.fd, write = os.pipe()
        self.said = ""  # beside the problem
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
        self.said = answer.get("said", "")
        self.then(answer.get("result"), answer.get("problem"))

    def expire(self) -> None:
        """Its end is heard like any other."""
        self._answer = json.dumps({"problem": f"{self.what} took too long"}).encode()
        os.kill(self.pid, signal.SIGKILL)


def _work_and_leave(agent: int, work: Callable[[], Any], write: int) -> None:
    """Nothing it prints may reach the stream."""
    try:
        die_with_parent(agent)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        try:
            nothing = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(nothing, fd)
            answer = {"result": work()}
        except Exception as error:
            answer = {"problem": str(error) or type(error).__name__, "said": getattr(error, "said", "")}
        with os.fdopen(write, "wb") as pipe:
            pipe.write(json.dumps(answer).encode())
    finally:
        os._exit(0)
