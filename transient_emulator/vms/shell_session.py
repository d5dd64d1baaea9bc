"""One SSH session: a program in the VM and the client, connected by pipes or a terminal.

Output, exit codes and endings follow OpenSSH. A session without a terminal lasts as long as a
process holds its output. If the client leaves first, the program gets SIGHUP. Signals and window
sizes that the client sends are delivered.
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

# The time for the last output of a terminal, and for the client's end.
_FAREWELL_SECONDS = 5.0
_SFTP_VERSION = 3
_SIGNALS = {member.name: member.value for member in signal.Signals}
_END_OF_INPUT = b"\x04"  # Ctrl-D
Files = Callable[[SSHChannel[bytes]], asyncssh.SFTPServer]
_Feed = Coroutine[Any, Any, None]


class ShellSession(asyncssh.SSHServerProcess[bytes]):
    """A session's command, shell, or file transfer (served by `files`)."""

    def __init__(self, machine: Machine, files: Files) -> None:
        super().__init__(lambda _: self._serve(), files, _SFTP_VERSION, True)
        self._machine = machine
        self._program: Command | None = None
        # Signals that arrived before the program has started.
        self._early_signals: list[int] = []
        self._terminal: Pipe | None = None

    def signal_received(self, signal: str) -> None:
        """Deliver a signal of the client, by its name without SIG."""
        number = _SIGNALS.get(f"SIG{signal}")
        if number and self._program:
            self._program.signal(number)
        elif number:
            self._early_signals.append(number)

    def break_received(self, msec: int) -> bool:
        """Deliver a break of the client as SIGINT."""
        self.signal_received("INT")
        return True

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """Give the terminal the new size of the client's window."""
        if self._terminal:
            _set_size(self._terminal.descriptor, width, height)

    async def _serve(self) -> None:
        shell = [SHELL, "-c", self.command] if self.command else [SHELL, "-l"]
        try:
            if self.term_type:
                await self._with_terminal(shell)
            else:
                await self._with_pipes(shell)
        except OSError as error:
            name = self._machine.plan.name
            self.stderr.write(f"cannot start a program on {name}: {error}\n".encode())
            # OpenSSH's code for its own failures.
            self.exit(255)

    async def _with_pipes(self, shell: list[str]) -> None:
        # Reading end first.
        program_input, our_input = map(Pipe, os.pipe())
        our_output, program_output = map(Pipe, os.pipe())
        our_errors, program_errors = map(Pipe, os.pipe())
        program_ends = (program_input, program_output, program_errors)
        try:
            for pipe in program_ends:
                # Programs expect blocking descriptors.
                os.set_blocking(pipe.descriptor, True)
            program = await self._machine.run(
                *shell,
                stdin=program_input.descriptor,
                stdout=program_output.descriptor,
                stderr=program_errors.descriptor,
            )
            # The output ends when the last process in the VM closes it.
            for pipe in program_ends:
                pipe.close()
            outputs = [_forward(our_output, self.stdout), _forward(our_errors, self.stderr)]
            await self._converse(program, self._feed(our_input), outputs)
        finally:
            for pipe in (*program_ends, our_input, our_output, our_errors):
                pipe.close()

    async def _with_terminal(self, shell: list[str]) -> None:
        ours, programs = map(Pipe, os.openpty())
        os.set_blocking(programs.descriptor, True)
        width, height, *_ = self.term_size
        _set_size(ours.descriptor, width or 80, height or 24)
        try:
            end = programs.descriptor
            program = await self._machine.run(
                "env",
                f"TERM={self.term_type}",
                *shell,
                terminal=True,
                stdin=end,
                stdout=end,
                stderr=end,
            )
            programs.close()
            self._terminal = ours
            outputs = [_forward(ours, self.stdout)]
            await self._converse(program, self._feed(ours), outputs, patience=_FAREWELL_SECONDS)
        finally:
            self._terminal = None
            ours.close()
            programs.close()

    async def _feed(self, target: Pipe) -> None:
        """Send the client's input to the program."""
        # The program may not read, or the client may be gone.
        with contextlib.suppress(OSError, asyncssh.Error):
            while data := await self.stdin.read(65536):
                await target.write(data)
        if target is self._terminal:
            # A terminal cannot be closed in one direction.
            with contextlib.suppress(OSError):
                await target.write(_END_OF_INPUT)
        else:
            target.close()

    async def _converse(
        self,
        program: Command,
        feed: _Feed,
        outputs: Sequence[_Feed],
        patience: float | None = None,
    ) -> None:
        """Forward until the program has ended and its output is sent, or the client has left.

        Parameters
        ----------
        program
            The program.
        feed, outputs
            The forwarding of its input and outputs.
        patience
            Seconds for the output after the program's end; None waits for all.
        """
        self._program = program
        for number in self._early_signals:
            program.signal(number)

        async def finish() -> None:
            async with asyncio.TaskGroup() as group:
                forwarding = [group.create_task(output) for output in outputs]
                if patience is not None:
                    await program.process.wait()
                    _, late = await asyncio.wait(forwarding, timeout=patience)
                    for task in late:
                        task.cancel()
            code = await program.process.wait()
            self._program = None
            if code < 0:
                self.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
            else:
                self.exit(code)

        ending = asyncio.create_task(finish())
        feeding = asyncio.create_task(feed)
        leaving = asyncio.create_task(self.wait_closed())
        try:
            await asyncio.wait([ending, leaving], return_when=asyncio.FIRST_COMPLETED)
            # The client closes the session when it has everything.
            await asyncio.wait([leaving], timeout=_FAREWELL_SECONDS)
        finally:
            if self._program:
                program.signal(signal.SIGHUP)
                self._program = None
            tasks = [ending, feeding, leaving]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(source: Pipe, client: asyncssh.SSHWriter[bytes]) -> None:
    """Send the program's output to the client."""
    # If the client is gone, the session is about to end.
    with contextlib.suppress(BrokenPipeError):
        while data := await source.read():
            client.write(data)
            await client.drain()
            # A program that writes without end must not block the event loop for all others.
            await asyncio.sleep(0)


def _set_size(terminal: int, width: int, height: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
