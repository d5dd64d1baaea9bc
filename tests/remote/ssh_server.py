"""A real SSH server that stands for a VM: runs commands in a home directory, serves SFTP and Unix sockets there.

In a test's own process, or (`python ssh_server.py HOME AUTHORIZED_KEY [PORT]`) in one that can be frozen and killed;
then it prints its port and its host key.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import asyncssh


class Server(asyncssh.SSHServer):
    def unix_connection_requested(self, dest_path: str) -> bool:
        return True

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return dest_host == "127.0.0.1"


async def serve(
    home: Path,
    authorized_key: str,
    *,
    port: int = 0,
    host_key: asyncssh.SSHKey | None = None,
    sftp: type[asyncssh.SFTPServer] = asyncssh.SFTPServer,
    ciphers: tuple[str, ...] = (),
) -> tuple[asyncssh.SSHAcceptor, str]:
    """Serve `home` to whoever has the key; returns the server and its host key's line."""
    host_key = host_key or asyncssh.generate_private_key("ssh-ed25519")

    async def run(process: asyncssh.SSHServerProcess[bytes]) -> None:
        pipes = [os.pipe() for _ in range(3)]
        (its_input, our_input), (our_output, its_output), (our_error, its_error) = pipes
        program = await asyncio.create_subprocess_shell(
            process.command or "true",
            cwd=home,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "CIPHER": process.get_extra_info("send_cipher")},
            stdin=its_input,
            stdout=its_output,
            stderr=its_error,
            start_new_session=True,
        )
        for end in (its_input, its_output, its_error):
            os.close(end)
        process.set_redirect_pid(program.pid)
        try:
            # Without send_eof=False the end of the output would cut off complaints that are still to come.
            await process.redirect(stdin=our_input, stdout=our_output, stderr=our_error, send_eof=False)
            code = await program.wait()
            await process.stdout.drain()
            await process.stderr.drain()
            if code < 0:
                process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
            else:
                process.exit(code)
        finally:
            process.close()
            await process.wait_closed()  # also where the client left first: asyncssh awaits the end of the pipes here

    acceptor = await asyncssh.listen(
        "127.0.0.1",
        port,
        server_factory=Server,
        server_host_keys=[host_key],
        authorized_client_keys=asyncssh.import_authorized_keys(authorized_key),
        process_factory=run,
        encryption_algs=ciphers,
        encoding=None,
        sftp_factory=lambda channel: sftp(channel, chroot=os.fsencode(home)),
    )
    return acceptor, host_key.export_public_key().decode().strip()


async def main() -> None:
    acceptor, host_key = await serve(Path(sys.argv[1]), sys.argv[2], port=int((*sys.argv, "0")[3]))
    print(acceptor.get_port(), host_key, flush=True)
    await acceptor.wait_closed()


if __name__ == "__main__":
    asyncio.run(main())
