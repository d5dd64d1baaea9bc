"""Google as a machine with credentials meets it: over TLS, at its own names, by the proxy that the environment names.

What stands behind it here is a function; the certificates are its own, and nothing leaves this machine.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

NAMES = ("oauth2.googleapis.com", "cloudbilling.googleapis.com", "compute.googleapis.com")
ACCOUNT = "me@mine.iam.gserviceaccount.com"
TOKEN = "ya29.a-token-that-nobody-keeps"
Answer = tuple[int, dict[str, Any]]


@dataclass
class Google:
    """`environment` leads programs here. `asked`: host, method, path and what came in the Authorization header."""

    environment: dict[str, str]
    secrets: tuple[bytes, ...]
    asked: list[tuple[str, str, str, str]] = field(default_factory=list)
    tokens: list[bytes] = field(default_factory=list)

    def kept_in(self, folder: Path) -> list[Path]:
        """The files below a folder that hold something of the credentials."""
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return [path for path in paths if any(secret in path.read_bytes() for secret in self.secrets)]


@contextlib.contextmanager
def google(folder: Path, answers: Callable[[str, str, str], Answer]) -> Iterator[Google]:
    """Answer requests by host, method and path. The key of a service account lies in `folder`."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    (folder / "credentials.json").write_text(json.dumps({
        "type": "service_account", "project_id": "mine", "private_key_id": "5ecre7", "private_key": pem,
        "client_email": ACCOUNT, "token_uri": f"https://{NAMES[0]}/token",
    }), encoding="utf-8")  # fmt: skip
    (folder / "authority.pem").write_bytes(_certificate(key))
    (folder / "key.pem").write_text(pem, encoding="utf-8")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "authority.pem", folder / "key.pem")
    (folder / "key.pem").unlink()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        host = ""

        def do_CONNECT(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.host = self.path.partition(":")[0]
            self.connection = context.wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", buffering=0)
            self.close_connection = False

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.host == NAMES[0]:
                reached.tokens.append(body)
                status, content = 200, {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
            else:
                reached.asked.append((self.host, self.command, self.path, self.headers.get("Authorization", "")))
                status, content = answers(self.host, self.command, self.path)
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = answer  # the names that http.server looks for

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        proxy = f"http://127.0.0.1:{server.server_port}"
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        environment |= {
            "HTTPS_PROXY": proxy, "REQUESTS_CA_BUNDLE": str(folder / "authority.pem"), "NO_GCE_CHECK": "true",
            "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "credentials.json"),
        }  # fmt: skip
        reached = Google(environment, (pem.splitlines()[5].encode(), b"5ecre7", TOKEN.encode()))
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield reached
        finally:
            server.shutdown()


def _certificate(key: rsa.RSAPrivateKey) -> bytes:
    """One that vouches for itself."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    now = datetime.datetime.now(datetime.UTC)
    built = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    built = built.not_valid_before(now - datetime.timedelta(days=2)).not_valid_after(now + datetime.timedelta(days=2))
    built = built.add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in NAMES]), critical=False)
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
