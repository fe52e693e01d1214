"""A key service on the loopback address that speaks AWS KMS's own protocol, and believes nobody without a good signature.

It recomputes each request's Signature Version 4 with botocore's signer. Keys never leave it; a ciphertext names its key and is
bound to its context, as the real one's is.
"""

import json
import secrets
import socketserver
import threading
from base64 import b64decode, b64encode
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC

REGION = "eu-central-1"
ACCESS, SECRET = "AKIDKEYSERVICE", "kept-to-the-key-service"


class Fault(Exception):
    def __init__(self, name, status=400):
        super().__init__(name)
        self.name, self.status = name, status


@dataclass
class KeyService:
    """What the server knows. A test may look into it, and change it."""

    keys: dict = field(default_factory=dict)
    disabled: set = field(default_factory=set)
    calls: list = field(default_factory=list)
    failures: list = field(default_factory=list)
    port: int = 0

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def make(self):
        key = f"{secrets.token_hex(4)}-key"
        self.keys[key] = secrets.token_bytes(32)
        return key

    def delete(self, key):
        del self.keys[key]

    def answer(self, operation, asked):
        self.calls.append((operation, asked.get("EncryptionContext")))
        if self.failures:
            raise Fault(*self.failures.pop(0))
        if operation not in {"Encrypt", "Decrypt", "GenerateMac"}:
            raise Fault("UnknownOperationException")
        return getattr(self, f"_{operation.lower()}")(asked)

    def _key(self, name):
        if name not in self.keys:
            raise Fault("NotFoundException")
        if name in self.disabled:
            raise Fault("DisabledException")
        return self.keys[name]

    def _encrypt(self, asked):
        key, plain = self._key(asked["KeyId"]), b64decode(asked["Plaintext"], validate=True)
        if not 0 < len(plain) <= 4096:
            raise Fault("ValidationException")
        nonce, name = secrets.token_bytes(12), asked["KeyId"].encode()
        sealed = AESGCM(key).encrypt(nonce, plain, _context(asked))
        blob = bytes((len(name),)) + name + nonce + sealed
        return {"CiphertextBlob": _text(blob), "KeyId": asked["KeyId"], "EncryptionAlgorithm": "SYMMETRIC_DEFAULT"}

    def _decrypt(self, asked):
        blob = b64decode(asked["CiphertextBlob"], validate=True)
        name = blob[1 : 1 + blob[0]].decode(errors="replace") if blob else ""
        rest = blob[1 + len(name) :]
        key = self._key(asked["KeyId"])
        if name not in self.keys:
            raise Fault("InvalidCiphertextException")
        if name != asked["KeyId"]:
            raise Fault("IncorrectKeyException")
        try:
            plain = AESGCM(key).decrypt(rest[:12], rest[12:], _context(asked))
        except (InvalidTag, ValueError):
            raise Fault("InvalidCiphertextException") from None
        return {"Plaintext": _text(plain), "KeyId": name, "EncryptionAlgorithm": "SYMMETRIC_DEFAULT"}

    def _generatemac(self, asked):
        if asked["MacAlgorithm"] != "HMAC_SHA_256":
            raise Fault("InvalidKeyUsageException")
        mac = HMAC(self._key(asked["KeyId"]), SHA256())
        mac.update(b64decode(asked["Message"], validate=True))
        return {"Mac": _text(mac.finalize()), "KeyId": asked["KeyId"], "MacAlgorithm": "HMAC_SHA_256"}


def _context(asked):
    return json.dumps(sorted(asked.get("EncryptionContext", {}).items())).encode()


def _text(data):
    return b64encode(data).decode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        service = self.server.service
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            self._require_signature(body)
            self._send(200, service.answer(self._operation(), json.loads(body)))
        except Fault as fault:
            # The real one puts key ids and callers into its messages.
            message = f"arn:aws:kms:{REGION}:111122223333:key/… is not authorized for {ACCESS}"
            self._send(fault.status, {"__type": f"com.amazonaws.kms#{fault.name}", "message": message})

    def _operation(self):
        prefix, _, operation = self.headers.get("X-Amz-Target", "").partition(".")
        if self.path != "/" or prefix != "TrentService":
            raise Fault("UnknownOperationException")
        if self.headers.get("Content-Type") != "application/x-amz-json-1.1":
            raise Fault("SerializationException")
        return operation

    def _require_signature(self, body):
        """Sign what arrived, as it arrived, and compare."""
        given = self.headers.get("Authorization", "")
        if not given:
            raise Fault("MissingAuthenticationTokenException")
        if f"Credential={ACCESS}/" not in given:
            raise Fault("UnrecognizedClientException")
        names = given.partition("SignedHeaders=")[2].partition(",")[0].split(";")
        if not {"host", "x-amz-date", "x-amz-target"} <= set(names):
            raise Fault("IncompleteSignature")
        request = AWSRequest(
            method="POST",
            url=f"http://{self.headers['Host']}{self.path}",
            data=body,
            headers={name: self.headers[name] for name in names if name not in {"host", "x-amz-date"}},
        )
        request.context["timestamp"] = self.headers["X-Amz-Date"]
        signer = SigV4Auth(Credentials(ACCESS, SECRET), "kms", REGION)
        request.headers["X-Amz-Date"] = self.headers["X-Amz-Date"]
        canonical = signer.canonical_request(request)
        expected = signer.signature(signer.string_to_sign(request, canonical), request)
        if not given.endswith(f"Signature={expected}"):
            raise Fault("InvalidSignatureException")

    def _send(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Tests look at `calls`."""


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def running():
    server = _Server(("127.0.0.1", 0), _Handler)
    server.service = KeyService(port=server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
