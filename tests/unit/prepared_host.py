"""A host that answers from a list, for commands that need no real host."""

from __future__ import annotations

from collections.abc import Iterable

from provision.core.model import Host, Sink


class PreparedHost:
    """A transport that gives prepared answers in turn: a text to print, or an exit status."""

    def __init__(self, *answers: str | int) -> None:
        self.answers = list(answers)
        self.sent = b""
        self.answers_left_at_send: int | None = None
        self.host = Host(name="box", address="box.invalid", user="me")

    def exchange(
        self,
        command: str,
        stdin: bytes = b"",
        *,
        on_stdout: Sink,
        on_stderr: Sink,
        timeout_s: float,
    ) -> int:
        del command, stdin, on_stderr, timeout_s
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            return answer
        on_stdout(answer.encode())
        return 0

    def send(
        self,
        command: str,
        chunks: Iterable[bytes],
        *,
        on_stdout: Sink,
        on_stderr: Sink,
        timeout_s: float,
    ) -> int:
        del command, on_stdout, on_stderr, timeout_s
        self.answers_left_at_send = len(self.answers)
        self.sent += b"".join(chunks)
        return 0

    def close(self) -> None:
        """Do nothing: no connection is open."""
