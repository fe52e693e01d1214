"""A scripted server on the loopback address."""

import socketserver
import ssl
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

import pytest


@dataclass
class Script:
    """What to answer, in turn; the last one for ever after."""

    answers: list = field(default_factory=lambda: [(200, {}, b"")])
    requests: list = field(default_factory=list)
    connections: int = 0
    port: int = 0
    names: list = field(default_factory=list)

    def next(self):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, script, tls):
        self.script, self.tls = script, tls
        super().__init__(("127.0.0.1", 0), Handler)

    def get_request(self):
        connection, peer = super().get_request()
        self.script.connections += 1
        return (self.tls.wrap_socket(connection, server_side=True) if self.tls else connection), peer

    def handle_error(self, request, client_address):
        """A client that hangs up is what some tests are about."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_any(self):
        script = self.server.script
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        script.requests.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        answer = script.next()
        if answer == "cut":
            self.close_connection = True
            return
        if answer == "hang":
            script.hang.wait(10)
            self.close_connection = True
            return
        status, headers, body = answer
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_DELETE = do_HEAD = do_POST = do_any  # noqa: N815

    def log_message(self, *_):
        """Tests look at `requests`."""


@pytest.fixture
def serve():
    servers = []

    def start(*answers, tls=None):
        script = Script(list(answers) or [(200, {}, b"")])
        script.hang = threading.Event()
        if tls is not None:
            tls.sni_callback = lambda _socket, name, _context: script.names.append(name)
        server = Server(script, tls)
        script.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread, script))
        return script

    yield start
    for server, thread, script in servers:
        script.hang.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def tls_for(tmp_path):
    """A server context with a certificate for a name, and the file of those who trust it."""
    from retention_pipeline_tests.unit.egress.certificates import issue

    def make(name):
        certificate, key = issue(tmp_path, name)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context, certificate

    return make
