"""What every key provider promises, whoever holds the root keys (SPEC A18)."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import boto3
import pytest

from retention_pipeline import clock
from retention_pipeline.egress.kms import KmsApi, KmsPlace
from retention_pipeline.egress.policy import Destination, EgressPolicy
from retention_pipeline.egress.transport import PinnedTransport
from retention_pipeline.errors import Code, RetentionError, Unavailable
from retention_pipeline.keys.aws_kms import AwsKms
from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.keys.several import KmsAndKeyring
from retention_pipeline.model.credentials import Credentials
from retention_pipeline.model.ids import TenantId
from retention_pipeline_tests import key_service
from retention_pipeline_tests.fakes import MemoryKeys

TENANT, KEY = TenantId("t-1"), b"k" * 32


@dataclass
class Kind:
    """A provider, and how its root keys come and go."""

    provider: Any
    rotate: Any
    lose: Any
    another: Any


@pytest.fixture(scope="module")
def service():
    with key_service.running() as service:
        yield service


@pytest.fixture
def api_of(service):
    made = []

    def make(secret=key_service.SECRET, *, access=key_service.ACCESS, approved=True):
        entries = [{"destination": service.endpoint, "networks": ["127.0.0.1/32"]}] if approved else []
        policy = EgressPolicy.load(entries=entries)
        made.append(PinnedTransport(lambda: policy))
        place = KmsPlace(endpoint=Destination.parse(service.endpoint), region=key_service.REGION)
        return KmsApi(made[-1], place, Credentials(access_key=access, secret_key=secret))

    service.failures.clear()
    yield make
    for transport in made:
        transport.close()


def memory(_request, _path):
    provider = MemoryKeys()
    return Kind(provider, provider.add_root, provider.drop, MemoryKeys)


def keyring(_request, path):
    provider = LocalKeyring.create(path / "keyring.json")

    def lose(name):
        provider.add_root()
        assert provider.drop_roots([name]) == 1

    return Kind(provider, provider.add_root, lose, lambda: LocalKeyring.create(path / "another.json"))


def kms(request, _path):
    service, api = request.getfixturevalue("service"), request.getfixturevalue("api_of")()
    mac = service.make()
    provider = AwsKms(service=api, key=service.make(), mac=mac)

    def rotate():
        provider.key = service.make()  # as a new configuration would
        return provider.current()

    return Kind(
        provider,
        rotate,
        lambda name: service.delete(name.removeprefix("aws-kms:")),
        lambda: AwsKms(service=api, key=service.make(), mac=service.make()),
    )


def both(request, path):
    of_kms, of_file = kms(request, path), keyring(request, path)
    provider = KmsAndKeyring(kms=of_kms.provider, keyring=of_file.provider, by_kms=True, mac_by_kms=False)
    return Kind(provider, of_kms.rotate, of_kms.lose, of_kms.another)


@pytest.fixture(params=[memory, keyring, kms, both], ids=lambda made: made.__name__)
def kind(request, tmp_path):
    return request.param(request, tmp_path)


def code_of(call, *arguments):
    with pytest.raises(RetentionError) as raised:
        call(*arguments)
    assert raised.value.__cause__ is None
    return raised.value.code


def test_a_wrapped_key_comes_back_and_names_its_root(kind):
    wrapped = kind.provider.wrap(TENANT, 1, KEY)
    assert wrapped.root_key_id == kind.provider.current()
    assert kind.provider.unwrap(TENANT, 1, wrapped) == KEY
    assert KEY not in wrapped.ciphertext


def test_twice_the_same_key_is_wrapped_in_two_ways(kind):
    first, second = (kind.provider.wrap(TENANT, 1, KEY) for _ in range(2))
    assert first.ciphertext != second.ciphertext


@pytest.mark.parametrize(("tenant", "generation"), [("t-2", 1), ("t-1", 2), ("t-1", 11)])
def test_it_opens_for_its_tenant_and_generation_alone(kind, tenant, generation):
    wrapped = kind.provider.wrap(TENANT, 1, KEY)
    assert code_of(kind.provider.unwrap, TenantId(tenant), generation, wrapped) is Code.OBJECT_UNAUTHENTIC


@pytest.mark.parametrize("damage", [lambda c: c[:-1] + bytes((c[-1] ^ 1,)), lambda c: c[:-1], lambda c: c + b"x"])
def test_one_that_was_changed_does_not_open(kind, damage):
    wrapped = kind.provider.wrap(TENANT, 1, KEY)
    changed = replace(wrapped, ciphertext=damage(wrapped.ciphertext))
    assert code_of(kind.provider.unwrap, TENANT, 1, changed) is Code.OBJECT_UNAUTHENTIC


def test_over_a_rotation_the_old_ones_open_and_the_new_ones_have_the_new_root(kind):
    before, old = kind.provider.wrap(TENANT, 1, KEY), kind.provider.current()
    assert kind.rotate() == kind.provider.current() != old
    assert kind.provider.unwrap(TENANT, 1, before) == KEY
    assert kind.provider.wrap(TENANT, 1, KEY).root_key_id == kind.provider.current()


def test_one_whose_root_is_gone_is_unavailable_and_not_forged(kind):
    wrapped = kind.provider.wrap(TENANT, 1, KEY)
    kind.rotate()
    kind.lose(wrapped.root_key_id)
    assert code_of(kind.provider.unwrap, TENANT, 1, wrapped) is Code.KEY_UNAVAILABLE


def test_one_that_says_another_root_does_not_open(kind):
    wrapped = kind.provider.wrap(TENANT, 1, KEY)
    kind.rotate()
    elsewhere = replace(wrapped, root_key_id=kind.provider.current())
    assert code_of(kind.provider.unwrap, TENANT, 1, elsewhere) is Code.OBJECT_UNAUTHENTIC


def test_each_purpose_has_a_key_of_its_own_which_survives_rotation(kind):
    before = {purpose: kind.provider.mac_key(purpose) for purpose in ("audit", "anchor", "")}
    assert len({*before.values()}) == 3
    assert {len(key) for key in before.values()} == {32}
    kind.rotate()
    assert {purpose: kind.provider.mac_key(purpose) for purpose in before} == before
    assert kind.another().mac_key("audit") != before["audit"]


def test_threads_may_share_it(kind):
    with ThreadPoolExecutor(8) as pool:
        wrapped = list(pool.map(lambda n: kind.provider.wrap(TENANT, n, bytes((n,)) * 32), range(1, 17)))
        opened = list(pool.map(lambda n: kind.provider.unwrap(TENANT, n, wrapped[n - 1]), range(1, 17)))
    assert opened == [bytes((n,)) * 32 for n in range(1, 17)]


def test_nothing_of_it_is_shown(kind):
    """A16."""
    assert kind.provider.current() not in repr(kind.provider)
    assert "127.0.0.1" not in repr(kind.provider)


# -- AWS KMS alone -------------------------------------------------------------------------------------------------------


@pytest.fixture
def pauses(monkeypatch):
    waited = []
    monkeypatch.setattr(clock, "sleep", waited.append)
    return waited


def wrapping(service, api):
    return AwsKms(service=api, key=service.make()).wrap


def test_the_context_is_what_the_log_of_the_service_may_know(service, api_of):
    wrapping(service, api_of())(TENANT, 3, KEY)
    assert service.calls[-1] == (
        "Encrypt",
        {"tenant": "t-1", "generation": "3", "purpose": "nucleus/tenant-key.v1"},
    )


def test_amazons_own_client_and_ours_understand_each_other(service, api_of):
    """The service speaks the real protocol: whoever wrote the one side did not write the other."""
    client = boto3.client(
        "kms",
        endpoint_url=service.endpoint,
        region_name=key_service.REGION,
        aws_access_key_id=key_service.ACCESS,
        aws_secret_access_key=key_service.SECRET,
    )
    provider = AwsKms(service=api_of(), key=service.make(), mac=service.make())
    wrapped = provider.wrap(TENANT, 1, KEY)
    bound = {"tenant": "t-1", "generation": "1", "purpose": "nucleus/tenant-key.v1"}
    opened = client.decrypt(CiphertextBlob=wrapped.ciphertext, KeyId=provider.key, EncryptionContext=bound)
    assert opened["Plaintext"] == KEY
    made = client.encrypt(KeyId=provider.key, Plaintext=KEY, EncryptionContext=bound)
    assert provider.unwrap(TENANT, 1, replace(wrapped, ciphertext=made["CiphertextBlob"])) == KEY
    with pytest.raises(client.exceptions.InvalidCiphertextException):
        client.decrypt(CiphertextBlob=wrapped.ciphertext, EncryptionContext={}, KeyId=provider.key)
    client.close()


def test_a_bad_signature_or_an_unknown_caller_is_denied(service, api_of):
    """The service signs each request again, and compares."""
    for api in (api_of("another secret"), api_of(access="AKIDNOBODY")):
        assert code_of(wrapping(service, api), TENANT, 1, KEY) is Code.KEY_SERVICE_DENIED


def test_without_an_approval_nothing_is_sent(service, api_of):
    """A14: the key service obeys the same door."""
    before = len(service.calls)
    assert code_of(wrapping(service, api_of(approved=False)), TENANT, 1, KEY) is Code.EGRESS_NOT_APPROVED
    assert len(service.calls) == before


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (("AccessDeniedException",), Code.KEY_SERVICE_DENIED),
        (("ExpiredTokenException",), Code.KEY_SERVICE_DENIED),
        (("KMSInvalidStateException",), Code.KEY_UNAVAILABLE),
        (("DisabledException",), Code.KEY_UNAVAILABLE),
        (("AnythingElse", 400), Code.KEY_SERVICE_UNAVAILABLE),
    ],
)
def test_what_the_service_says_has_a_name_and_none_of_its_words(service, api_of, pauses, fault, code):
    """A16."""
    wrap = wrapping(service, api_of())
    service.failures.extend([fault] * 3)
    with pytest.raises(RetentionError) as raised:
        wrap(TENANT, 1, KEY)
    service.failures.clear()
    assert raised.value.code is code
    assert not any(word in str(raised.value) for word in ("arn:", "AKID", "127.0.0.1", fault[0]))


@pytest.mark.parametrize(
    "fault", [("ThrottlingException",), ("KMSInternalException", 500), ("DependencyTimeoutException", 503)]
)
def test_a_service_that_is_busy_is_asked_again(service, api_of, pauses, fault):
    wrap = wrapping(service, api_of())
    service.failures.append(fault)
    assert wrap(TENANT, 1, KEY).ciphertext
    assert pauses == [0.2]


def test_the_mac_is_asked_for_once(service, api_of):
    provider = AwsKms(service=api_of(), key=service.make(), mac=service.make())
    assert provider.mac_key("audit") == provider.mac_key("audit")
    assert [name for name, _ in service.calls].count("GenerateMac") >= 1
    before = len(service.calls)
    provider.mac_key("audit")
    assert len(service.calls) == before


def test_without_an_hmac_key_the_audit_key_is_the_keyrings(service, api_of, tmp_path):
    """So that what was sealed with it still verifies after the move."""
    keyring = LocalKeyring.create(tmp_path / "keyring.json")
    provider = AwsKms(service=api_of(), key=service.make())
    with pytest.raises(Unavailable):
        provider.mac_key("audit")
    moved = KmsAndKeyring(kms=provider, keyring=keyring, by_kms=True, mac_by_kms=False)
    assert moved.mac_key("audit") == keyring.mac_key("audit")


def test_an_installation_moves_from_the_file_to_the_service_and_back(service, api_of, tmp_path):
    keyring = LocalKeyring.create(tmp_path / "keyring.json")
    provider = AwsKms(service=api_of(), key=service.make())
    by_file = keyring.wrap(TENANT, 1, KEY)
    moved = KmsAndKeyring(kms=provider, keyring=keyring, by_kms=True, mac_by_kms=False)
    by_kms = moved.wrap(TENANT, 2, KEY)
    for one in (moved, replace(moved, by_kms=False)):
        assert one.unwrap(TENANT, 1, by_file) == one.unwrap(TENANT, 2, by_kms) == KEY
    assert replace(moved, by_kms=False).current() == keyring.current()
    assert code_of(provider.unwrap, TENANT, 1, by_file) is Code.KEY_UNAVAILABLE
