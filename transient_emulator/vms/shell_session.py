"""One SSH session: a program in the VM on one side, the client on the other, with pipes or a terminal between them.

Output, exit codes and endings follow OpenSSH: a session without a terminal lasts as long as something holds its output;
if the client leaves first, the program is told by SIGHUP; signals and window sizes that the client sends arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import asyncssh
from asyncssh.channel import SSHChannel

from .descriptors import Pipe
from .machine import SHELL, Command, Machine

_FAREWELL_SECONDS = 5.0
_SFTP_VERSION = 3
_SIGNALS = {each.name: each.value for each in signal.Signals}
Files = Callable[[SSHChannel[bytes]], asyncssh.SFTPServer]
_Feed = Coroutine[Any, Any, None]


class ShellSession(asyncssh.SSHServerProcess[bytes]):
    """What a client asks for in one session: a command, a shell, or file transfer (served by `files`)."""

    def __init__(self, machine: Machine, files: Files) -> None:
        super().__init__(lambda _: self._serve(), files, _SFTP_VERSION, True)
        self._machine = machine
        self._program: Command | None = None
        self._early_signals: list[int] = []
        self._terminal: Pipe | None = None

    def signal_received(self, signal: str) -> None:
        """The client sends a signal, by its name without SIG."""
        number = _SIGNALS.get(f"SIG{signal}")
        if number and self._program:
            self._program.signal(number)
        elif number:
            self._early_signals.append(number)

    def break_received(self, msec: int) -> bool:
        """The client sends a break."""
        self.signal_received("INT")
        return True

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """The client's window has a new size."""
        if self._terminal:
            _set_size(self._terminal.descriptor, width, height)

    async def _serve(self) -> None:
        shell = [SHELL, "-c", self.command] if self.command else [SHELL, "-l"]
        try:
            await (self._with_terminal(shell) if self.term_type else self._with_pipes(shell))
        except OSError as error:
            self.stderr.write(f"cannot start a program on {self._machine.plan.name}: {error}\n".encode())
            self.exit(255)

    async def _with_pipes(self, shell: list[str]) -> None:
        pairs = [tuple(map(Pipe, os.pipe())) for _ in range(3)]
        (their_input, our_input), (our_output, their_output), (our_errors, their_errors) = pairs
        theirs = (their_input, their_output, their_errors)
        try:
            for pipe in theirs:
                os.set_blocking(pipe.descriptor, True)
            standard_input, standard_output, standard_error = (pipe.descriptor for pipe in theirs)
            program = await self._machine.run(
                *shell, stdin=standard_input, stdout=standard_output, stderr=standard_error
            )
            for pipe in theirs:
                pipe.close()
            outputs = [_pass_on(our_output, self.stdout), _pass_on(our_errors, self.stderr)]
            await self._converse(program, self._feed(our_input), outputs)
        finally:
            for pair in pairs:
                for pipe in pair:
                    pipe.close()

    async def _with_terminal(self, shell: list[str]) -> None:
        ours, theirs = map(Pipe, os.openpty())
        os.set_blocking(theirs.descriptor, True)
        width, height, *_ = self.term_size
        _set_size(ours.descriptor, width or 80, height or 24)
        try:
            end = theirs.descriptor
            program = await self._machine.run(
                "env", f"TERM={self.term_type}", *shell, terminal=True, stdin=end, stdout=end, stderr=end
            )
            theirs.close()
            self._terminal = ours
            await self._converse(program, self._feed(ours), [_pass_on(ours, self.stdout)], patience=_FAREWELL_SECONDS)
        finally:
            self._terminal = None
            ours.close()
            theirs.close()

    async def _feed(self, target: Pipe) -> None:
        """What the client says, to the program."""
        with contextlib.suppress(OSError, asyncssh.Error):  # The program does not read, or the client is gone.
            while data := await self.stdin.read(65536):
                await target.write(data)
        if target is self._terminal:
            with contextlib.suppress(OSError):
                await target.write(b"\x04")
        else:
            target.close()

    async def _converse(
        self, program: Command, feed: _Feed, outputs: Sequence[_Feed], patience: float | None = None
    ) -> None:
        """Until the program has ended and its output is sent, or the client has left."""
        self._program = program
        for number in self._early_signals:
            program.signal(number)

        async def finish() -> None:
            async with asyncio.TaskGroup() as group:
                passing = [group.create_task(output) for output in outputs]
                if patience is not None:
                    await program.process.wait()
                    _, late = await asyncio.wait(passing, timeout=patience)
                    for task in late:
                        task.cancel()
            code = await program.process.wait()
            self._program = None
            if code < 0:
                self.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
            else:
                self.exit(code)

        ending, feeding = asyncio.create_task(finish()), asyncio.create_task(feed)
        leaving = asyncio.create_task(self.wait_closed())
        try:
            await asyncio.wait([ending, leaving], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([leaving], timeout=_FAREWELL_SECONDS)
        finally:
            if self._program:
                program.signal(signal.SIGHUP)
                self._program = None
            tasks = [ending, feeding, leaving]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _pass_on(source: Pipe, client: asyncssh.SSHWriter[bytes]) -> None:
    """What the program writes, to the client."""
    with contextlib.suppress(BrokenPipeError):  # The client is gone; the session is about to end for that.
        while data := await source.read():
            client.write(data)
            await client.drain()
            await asyncio.sleep(0)  # A program that writes without end must not keep the loop from everybody else.


def _set_size(terminal: int, width: int, height: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
