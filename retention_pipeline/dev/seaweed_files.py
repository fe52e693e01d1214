"""The files that tell SeaweedFS whom to let in."""

import json

from retention_pipeline.dev import certificates
from retention_pipeline.dev.state import StateFolder

IDENTITIES = "s3.json"
_CERTIFICATES = ("authority.crt", "server.crt", "server.key")
_TOKENS = ("jwt.signing", "jwt.signing.read", "jwt.filer_signing", "jwt.filer_signing.read")
_SERVICES = ("master", "volume", "filer", "s3", "admin", "client", "worker", "msg_broker")


def write(state: StateFolder, access_key: str, secret_key: str) -> None:
    """Let in, on the S3 side, whoever has these two, and on the others the server itself alone.

    Args:
        state: the claimed state folder, in which the server is started.
        access_key: the name of the one S3 identity.
        secret_key: what it signs with.
    """
    for name in ("data", "temporary"):
        (state.path / name).mkdir(mode=0o700, exist_ok=True)
    credentials = [{"accessKey": access_key, "secretKey": secret_key}]
    actions = ["Admin", "Read", "List", "Tagging", "Write"]
    identity = {"name": "retention", "credentials": credentials, "actions": actions}
    state.keep(IDENTITIES, json.dumps({"identities": [identity]}))
    # The key is kept last, so it says that all three are there.
    if state.kept(_CERTIFICATES[-1]) is None:
        made = certificates.issue()
        for name, text in zip(_CERTIFICATES, (made.authority, made.certificate, made.key), strict=True):
            state.keep(name, text)
    state.keep("security.toml", _security(state))


def _security(state: StateFolder) -> str:
    """Tokens for HTTP and certificates for gRPC, under the name that the server looks for where it is started."""
    authority, certificate, key = (json.dumps(str(state.path / name)) for name in _CERTIFICATES)
    lines = []
    for table in _TOKENS:
        lines += [f"[{table}]", f'key = "{state.secret(table)}"']
    lines += ["[grpc]", f"ca = {authority}"]
    for service in _SERVICES:
        lines += [f"[grpc.{service}]", f"cert = {certificate}", f"key = {key}"]
    return "\n".join(lines) + "\n"
