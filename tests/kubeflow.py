"""A server like that of Kubeflow Trainer for the status of TrainJobs, on this host, with a certificate of its own."""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

TOKEN = "header.payload.signature"
PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/digits/status"
LIMITS = {"progressPercentage": 100, "estimatedRemainingSeconds": 2**31 - 1}  # of Kubeflow's API
MAX_BYTES, MAX_METRICS, MAX_CHARACTERS = 1 << 16, 256, 64


@dataclass
class Server:
    """A running server: the variables of its pods, and the statuses that it has accepted."""

    environment: dict[str, str]
    answer: Callable[[int], int] = lambda number: 200  # status of the answer to a request, which it may delay
    accepted: list[dict] = field(default_factory=list)
    requests: int = 0
    secure: bool = True
    problems: list[str] = field(default_factory=list)

    def handle(self, path: str, authorization: str | None, body: bytes) -> int:
        """Return the status of the answer; problems are those for which Kubeflow would refuse the request."""
        self.requests += 1
        code = self.answer(self.requests)
        expected = f"Bearer {TOKEN}" if self.secure else None
        if (path, authorization) != (PATH, expected):
            return 403
        if code == 200:
            document = json.loads(body)
            self.problems += problems_of(document) if len(body) <= MAX_BYTES else ["size"]
            self.accepted.append(document["trainerStatus"])
        return code


def problems_of(document: dict) -> list[str]:
    """Return what of a request is not allowed by Kubeflow's API (trainer.kubeflow.org/v1alpha1)."""
    status = document["trainerStatus"]
    names = {*LIMITS, "metrics", "lastUpdatedTime"}
    found = [*({*status} - names)] + [name for name in document if name != "trainerStatus"]
    for name, limit in LIMITS.items():
        if name in status and not (isinstance(status[name], int) and 0 <= status[name] <= limit):
            found.append(name)
    for metric in status["metrics"]:
        if {*metric} != {"name", "value"} or not all(
            isinstance(text, str) and 1 <= len(text) <= MAX_CHARACTERS for text in metric.values()
        ):
            found.append(f"metric {metric}")
    if len(status["metrics"]) > MAX_METRICS:
        found.append("number of metrics")
    if datetime.datetime.fromisoformat(status["lastUpdatedTime"]).tzinfo is None:
        found.append("lastUpdatedTime")
    return found


@contextmanager
def serving(folder: Path, answer: Callable[[int], int] | None = None, *, secure: bool = True) -> Iterator[Server]:
    """Serve the status of a TrainJob until the `with` block ends; `secure`: by HTTPS, with a token."""
    folder.mkdir(exist_ok=True)
    server = Server({}, secure=secure)
    if answer:
        server.answer = answer

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            code = server.handle(self.path, self.headers.get("Authorization"), body)
            self.send_response(code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    if secure:
        certificate, key = certify(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        http.socket = context.wrap_socket(http.socket, server_side=True)
        (folder / "token").write_text(TOKEN + "\n")
        server.environment |= {
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(certificate),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(folder / "token"),
        }
    address = f"http{'s' * secure}://127.0.0.1:{http.server_address[1]}{PATH}"
    server.environment["KUBEFLOW_TRAINER_SERVER_URL"] = address
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def certify(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1, which is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubeflow-trainer-controller-manager")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "ca.crt", folder / "tls.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


def late(delay_s: float) -> Callable[[int], int]:
    """Return an answer that takes some time."""

    def answer(number: int) -> int:
        time.sleep(delay_s)
        return 200

    return answer
