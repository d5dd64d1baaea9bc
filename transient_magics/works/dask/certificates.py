"""The certificates of a Dask cluster: an authority of its own, and a key for each of its parts.

A process with a key can run code on all VMs of the Dask cluster. So keys are short-lived, are copied
over SSH alone, and are deleted at its end. Certificates have no host names, and Dask checks none,
because addresses of VMs change.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ...files import write_atomically
from ...protocol import layout
from ...spec import ClusterSpec

_SPARE_SECONDS = 86_400.0
"""How long certificates are valid after the end of the cluster."""
_AHEAD = timedelta(hours=1)
"""How far a VM's clock may be behind this machine's."""


def until(spec: ClusterSpec) -> float:
    """Return when the certificates of a cluster expire, in seconds since 1970."""
    return spec.declared_at + spec.max_seconds + _SPARE_SECONDS


def make(folder: Path, name: str, until: float) -> None:
    """Create the authority and the client's certificate in a folder that has none.

    They are valid until `until`, in seconds since 1970.
    """
    if (folder / layout.TLS_KEY).exists():
        return
    (folder / layout.TLS_CA).parent.mkdir(exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = _name(f"Dask cluster {name}")
    usage = x509.BasicConstraints(ca=True, path_length=0)
    built = _builder(issuer, issuer, key.public_key(), until).add_extension(usage, critical=True)
    certificate = built.add_extension(_usage(signs=True), critical=True).sign(key, hashes.SHA256())
    write_atomically(folder / layout.TLS_CA_KEY, _private(key))
    write_atomically(folder / layout.TLS_CA, certificate.public_bytes(serialization.Encoding.PEM))
    own, own_key = issued(folder, "client", until)
    write_atomically(folder / layout.TLS_CERTIFICATE, own)
    write_atomically(folder / layout.TLS_KEY, own_key)


def issued(folder: Path, name: str, until: float) -> tuple[bytes, bytes]:
    """Return a new certificate for a part, and its key, both as PEM. Raises OSError."""
    authority = x509.load_pem_x509_certificate((folder / layout.TLS_CA).read_bytes())
    signing = serialization.load_pem_private_key((folder / layout.TLS_CA_KEY).read_bytes(), None)
    if not isinstance(signing, ec.EllipticCurvePrivateKey):
        raise OSError(f"{layout.TLS_CA_KEY} is not a key of the cluster")
    key = ec.generate_private_key(ec.SECP256R1())
    built = _builder(authority.subject, _name(name), key.public_key(), until)
    built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    built = built.add_extension(_usage(signs=False), critical=True).add_extension(
        both, critical=False
    )
    certificate = built.sign(signing, hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.PEM), _private(key)


def forget(folder: Path) -> None:
    """Delete all keys."""
    for name in (layout.TLS_CA_KEY, layout.TLS_KEY, layout.TLS_CERTIFICATE, layout.TLS_CA):
        (folder / name).unlink(missing_ok=True)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _builder(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey, until: float
) -> x509.CertificateBuilder:
    begin = datetime.now(UTC) - _AHEAD
    end = max(datetime.fromtimestamp(until, UTC), datetime.now(UTC) + _AHEAD)
    builder = x509.CertificateBuilder().issuer_name(issuer).subject_name(subject).public_key(key)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
