"""Work that may block, done in forked children while the agent's loop goes on."""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from typing import Any, Callable, Dict, List, Optional

from hostmesh.launcher.agent.children.fresh_child import leave_parent, leave_stream


class ChildTasks:
    """All tasks that are under way; `refuse` gets the problem of a task that has no refusal of its own."""

    def __init__(self, selector: selectors.BaseSelector, refuse: Callable[[str], None]) -> None:
        self._selector, self._refuse = selector, refuse
        self._tasks: List[ChildTask] = []

    def begin(
        self,
        work: Callable[[], Any],
        then: Callable[[Any], None],
        limit: float,
        what: str,
        refuse: Optional[Callable[[str], None]] = None,
    ) -> None:
        """`then` gets the result of `work`, which must fit into JSON. Work that takes more than `limit` seconds is
        killed and refused; `what` names it in the message."""

        def finish(result: Any, problem: Optional[str]) -> None:
            if problem is None:
                then(result)
            else:
                (refuse or self._refuse)(problem)

        task = ChildTask(work, finish, limit, what)
        self._tasks.append(task)
        self._selector.register(task.fd, selectors.EVENT_READ, lambda: self._hear(task))

    def keep_time(self) -> None:
        now = time.monotonic()
        for task in [task for task in self._tasks if now > task.deadline]:
            task.expire()
            self._finish(task)

    def _hear(self, task: ChildTask) -> None:
        if task.hear():
            self._finish(task)

    def _finish(self, task: ChildTask) -> None:
        self._selector.unregister(task.fd)
        self._tasks.remove(task)
        task.finish()


class ChildTask:
    """`then` gets the result of `work` and None, or None and the problem."""

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
        """To be called when `fd` is ready; True when the child has given its whole answer, or has died."""
        data = os.read(self.fd, 1 << 16)
        self._answer += data
        return not data

    def finish(self) -> None:
        """By now no selector may watch `fd`: what `then` begins may get a descriptor with the same number."""
        os.close(self.fd)
        try:
            answer: Dict[str, Any] = json.loads(self._answer)
        except ValueError:
            answer = {"problem": f"{self.what} ended without an answer"}
        self.then(answer.get("result"), answer.get("problem"))

    def expire(self) -> None:
        """Kill the child; `finish` must be called next. Nobody waits for the child's end: as long as its disk hangs, it
        does not die."""
        problem = f"{self.what} took longer than {self.limit:g} s; does the disk there answer?"
        self._answer = json.dumps({"problem": problem}).encode()
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _work_and_leave(agent: int, work: Callable[[], Any], write: int) -> None:
    try:
        try:
            leave_parent(agent)
            leave_stream()
            answer = {"result": work()}
        except Exception as error:
            answer = {"problem": str(error) or type(error).__name__}
        with os.fdopen(write, "wb") as pipe:
            pipe.write(json.dumps(answer).encode())
    finally:
        os._exit(0)
