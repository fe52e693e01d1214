"""Requests go to checked addresses only (A14)."""

import logging
import socket

import pytest

from retention_pipeline.egress.policy import EgressPolicy
from retention_pipeline.egress.transport import Loss, PinnedTransport, TransportError, resolve
from retention_pipeline.errors import Code, Refused

LOOPBACK = ["127.0.0.0/8", "::1/128"]
MANY = [f"127.0.1.{n}" for n in range(1, 100)]


class Names:
    """A name server that says what a test tells it, and remembers who asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def __call__(self, host, port):
        self.asked.append((host, port))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def transport_to():
    made = []

    def make(url, *answers, networks=LOOPBACK, **how):
        approved = EgressPolicy.load(entries=[{"destination": url, "networks": networks}])
        names = Names(*(answers or (["127.0.0.1"],)))
        made.append(PinnedTransport(lambda: approved, resolver=names, **how))
        return made[-1], names

    yield make
    for transport in made:
        transport.close()


def ask(transport, url, **how):
    answer = transport.send("GET", url, headers={}, **how)
    try:
        return answer.status, answer.read()
    finally:
        answer.close()


def loss_of(transport, url):
    with pytest.raises(TransportError) as raised:
        ask(transport, url)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    return raised.value.loss


def refusal_of(transport, url):
    with pytest.raises(Refused) as raised:
        ask(transport, url)
    return raised.value.code


def test_the_host_name_is_kept_for_the_request_and_the_address_for_the_connection(serve, transport_to):
    script = serve((200, {}, b"hello"))
    url = f"http://store.test:{script.port}"
    transport, names = transport_to(url)
    assert ask(transport, f"{url}/a/b?x=1&y=%2F") == (200, b"hello")
    ((method, path, headers, _),) = script.requests
    assert (method, path, headers["host"]) == ("GET", "/a/b?x=1&y=%2F", f"store.test:{script.port}")
    assert names.asked == [("store.test", script.port)]


def test_every_operation_asks_for_the_addresses_again_and_reuses_the_connection(serve, transport_to):
    script = serve((200, {}, b"x"))
    url = f"http://store.test:{script.port}"
    transport, names = transport_to(url)
    for _ in range(3):
        ask(transport, url)
    assert len(names.asked) == 3
    assert script.connections == 1


def test_an_open_connection_is_not_reused_once_its_peer_is_not_in_the_answer(serve, transport_to):
    script = serve((200, {}, b"x"))
    url = f"http://store.test:{script.port}"
    transport, _ = transport_to(url, ["127.0.0.1"], ["::1"])
    ask(transport, url)
    assert loss_of(transport, url) is Loss.UNREACHED
    assert (script.connections, len(script.requests)) == (1, 1)


def test_a_name_that_is_bound_to_another_place_is_refused_although_a_connection_is_open(serve, transport_to):
    script = serve((200, {}, b"x"))
    url = f"http://store.test:{script.port}"
    transport, _ = transport_to(url, ["127.0.0.1"], ["127.0.0.1", "169.254.169.254"], ["10.0.0.1"])
    ask(transport, url)
    for _ in range(2):
        assert refusal_of(transport, url) is Code.EGRESS_ADDRESS_REFUSED
    assert len(script.requests) == 1


def test_no_name_is_looked_up_for_what_is_not_approved(transport_to):
    transport, names = transport_to("http://store.test:1")
    assert refusal_of(transport, "http://other.test:1/") is Code.EGRESS_NOT_APPROVED
    assert refusal_of(transport, "https://store.test:1/") is Code.EGRESS_NOT_APPROVED
    assert names.asked == []


def test_an_approval_that_was_withdrawn_counts_at_once(serve):
    script = serve((200, {}, b"x"))
    url = f"http://127.0.0.1:{script.port}"
    entries = [{"destination": url, "networks": LOOPBACK}]
    transport = PinnedTransport(lambda: EgressPolicy.load(entries=entries))
    ask(transport, url)
    entries.clear()
    assert refusal_of(transport, url) is Code.EGRESS_NOT_APPROVED
    transport.close()


def test_an_address_in_the_url_is_checked_like_any_other(transport_to):
    transport, names = transport_to("http://127.0.0.1:9", networks=[])
    assert refusal_of(transport, "http://127.0.0.1:9/") is Code.EGRESS_ADDRESS_REFUSED
    assert names.asked == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_never_followed(serve, transport_to, status):
    other = serve()
    script = serve((status, {"Location": f"http://127.0.0.1:{other.port}/"}, b""))
    url = f"http://store.test:{script.port}"
    transport, _ = transport_to(url)
    assert refusal_of(transport, url) is Code.EGRESS_NOT_APPROVED
    assert (len(script.requests), other.requests) == (1, [])


@pytest.mark.parametrize(
    "url", ["http://user:pw@store.test:1/", "http://store.test./", "ftp://store.test/", "/x", "http://127.1/"]
)
def test_a_url_that_reads_in_two_ways_is_refused(transport_to, url):
    transport, _ = transport_to("http://store.test")
    assert refusal_of(transport, url) is Code.EGRESS_INVALID


def test_the_next_address_is_tried_while_nothing_was_sent(serve, transport_to):
    script = serve((200, {}, b"x"))
    url = f"http://store.test:{script.port}"
    transport, _ = transport_to(url, ["::1", "127.0.0.1"])
    assert ask(transport, url) == (200, b"x")


def test_a_request_that_may_have_landed_is_not_sent_to_the_next_address(serve, transport_to):
    script = serve("cut")
    url = f"http://store.test:{script.port}"
    transport, _ = transport_to(url, ["127.0.0.1", "::1"])
    assert loss_of(transport, url) is Loss.CUT
    assert len(script.requests) == 1


def test_a_host_without_an_address_is_unresolved(transport_to):
    transport, _ = transport_to("http://store.test:1", socket.gaierror("no such host"))
    assert loss_of(transport, "http://store.test:1/") is Loss.UNRESOLVED


def test_an_answer_that_does_not_come_is_unanswered(serve, transport_to):
    script = serve("hang")
    url = f"http://store.test:{script.port}"
    transport, _ = transport_to(url, read_timeout=0.1)
    assert loss_of(transport, url) is Loss.UNANSWERED


def test_the_certificate_must_be_the_host_s_whatever_the_address(serve, transport_to, tls_for):
    context, trusted = tls_for("store.test")
    script = serve((200, {}, b"secret"), tls=context)
    url = f"https://store.test:{script.port}"
    transport, _ = transport_to(url, ca_file=trusted)
    assert ask(transport, url) == (200, b"secret")
    assert script.names == ["store.test"]


def test_another_host_s_certificate_is_not_accepted(serve, transport_to, tls_for):
    context, trusted = tls_for("other.test")
    script = serve((200, {}, b"secret"), tls=context)
    url = f"https://store.test:{script.port}"
    transport, _ = transport_to(url, ca_file=trusted)
    assert loss_of(transport, url) is Loss.UNTRUSTED
    assert script.requests == []


def test_a_certificate_of_nobody_we_trust_is_not_accepted(serve, transport_to, tls_for):
    context, _ = tls_for("store.test")
    script = serve((200, {}, b"secret"), tls=context)
    url = f"https://store.test:{script.port}"
    transport, _ = transport_to(url)
    assert loss_of(transport, url) is Loss.UNTRUSTED


def test_the_environment_changes_nothing(serve, transport_to, monkeypatch, tmp_path):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    script = serve((200, {}, b"x"))
    url = f"http://store.test:{script.port}"
    transport, _ = transport_to(url)
    assert ask(transport, url) == (200, b"x")
    assert not (tmp_path / "keys").exists()


def test_the_libraries_log_nothing_a16(serve, transport_to, caplog):
    caplog.set_level(logging.DEBUG)
    script = serve((200, {}, b"x"))
    url = f"http://store.test:{script.port}"
    transport, _ = transport_to(url)
    ask(transport, url)
    assert caplog.records == []


@pytest.mark.allow_hosts([*MANY, "127.0.0.1"])
def test_many_addresses_of_one_host_don_t_pile_up(serve, transport_to):
    script = serve((200, {}, b"x"))
    url = f"http://store.test:{script.port}"
    answers = [[address, "127.0.0.1"] for address in MANY]
    transport, _ = transport_to(url, *answers, connect_timeout=0.2)
    for _ in answers:
        ask(transport, url)
    assert sum(map(len, transport._pools.values())) <= 64
    assert script.connections == 1


def test_the_system_s_resolver_gives_every_address():
    assert "127.0.0.1" in resolve("127.0.0.1", 80)
