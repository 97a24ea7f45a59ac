"""Certificates of servers on this machine, each of which vouches for itself."""

import ssl
import subprocess
from pathlib import Path


def certified(directory: Path, name: str) -> tuple[ssl.SSLContext, Path]:
    """The context of a server on 127.0.0.1, and the certificate that vouches for it."""
    key, certificate = directory / f"{name}.key", directory / f"{name}.crt"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    extensions = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run([*command, *extensions], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
