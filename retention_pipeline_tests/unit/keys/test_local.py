"""The keyring file: whole, private, rotated without losing what it wrapped (A18)."""

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from retention_pipeline.errors import Code, RetentionError
from retention_pipeline.keys.local import LocalKeyring
from retention_pipeline.model.ids import TenantId

TENANT, KEY = TenantId("t-1"), b"k" * 32


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keyring.json"


@pytest.fixture
def keyring(path):
    return LocalKeyring.create(path)


def code_of(call, *args):
    with pytest.raises(RetentionError) as raised:
        call(*args)
    assert raised.value.__cause__ is None
    return raised.value.code


def test_a_wrapped_key_comes_back(keyring, path):
    wrapped = keyring.wrap(TENANT, 1, KEY)
    assert wrapped.root_key_id == keyring.current()
    assert LocalKeyring(path).unwrap(TENANT, 1, wrapped) == KEY


def test_a_wrapped_key_is_bound_to_tenant_and_generation(keyring):
    wrapped = keyring.wrap(TENANT, 1, KEY)
    assert code_of(keyring.unwrap, TenantId("t-2"), 1, wrapped) is Code.OBJECT_UNAUTHENTIC
    assert code_of(keyring.unwrap, TENANT, 2, wrapped) is Code.OBJECT_UNAUTHENTIC


def test_old_keys_stay_readable_over_a_rotation(keyring, path):
    before, audit, old = keyring.wrap(TENANT, 1, KEY), keyring.mac_key("audit"), keyring.current()
    assert keyring.add_root() == keyring.current() != old
    assert keyring.unwrap(TENANT, 1, before) == KEY
    assert keyring.wrap(TENANT, 1, KEY).root_key_id != old
    assert keyring.mac_key("audit") == audit
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_rotations_at_once_lose_no_key(keyring, path):
    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(lambda _: keyring.add_root(), range(8)))
    stored = json.loads(path.read_text())["roots"]
    assert set(added) < set(stored)
    assert len(set(stored.values())) == 9


def test_a_root_key_that_is_gone_is_unavailable(keyring):
    wrapped = replace(keyring.wrap(TENANT, 1, KEY), root_key_id="local-other")
    assert code_of(keyring.unwrap, TENANT, 1, wrapped) is Code.KEY_UNAVAILABLE


def test_each_purpose_has_its_own_mac_key(keyring):
    assert len({keyring.mac_key("audit"), keyring.mac_key("anchor"), keyring.mac_key("")}) == 3


def test_a_new_keyring_is_private_and_alone(keyring, path):
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_keyring_is_never_replaced_by_a_new_one(keyring, path):
    before = path.read_bytes()
    assert code_of(LocalKeyring.create, path) is Code.KEYRING_EXISTS
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_missing_keyring_is_missing(path):
    assert code_of(LocalKeyring(path).current) is Code.KEYRING_MISSING
    assert code_of(LocalKeyring(path / "deeper").current) is Code.KEYRING_MISSING


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o700, 0o666])
def test_a_keyring_that_others_may_touch_is_unsafe(keyring, path, mode):
    path.chmod(mode)
    assert code_of(keyring.current) is Code.KEYRING_UNSAFE
    assert code_of(keyring.add_root) is Code.KEYRING_UNSAFE


def test_a_symlink_to_a_keyring_is_unsafe(keyring, path):
    link = path.with_name("link")
    link.symlink_to(path)
    assert code_of(LocalKeyring(link).current) is Code.KEYRING_UNSAFE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_user_s_keyring_is_unsafe(keyring, path):
    os.chown(path, 65534, 65534)
    assert code_of(keyring.current) is Code.KEYRING_UNSAFE


def test_a_pipe_in_its_place_is_unsafe_and_does_not_wait(path):
    os.mkfifo(path, 0o600)
    assert code_of(LocalKeyring(path).current) is Code.KEYRING_UNSAFE


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"roots": 1}', "\x00"])
def test_a_damaged_keyring_is_unsafe(keyring, path, text):
    path.write_text(text)
    assert code_of(keyring.current) is Code.KEYRING_UNSAFE


def test_a_keyring_cut_short_is_unsafe(keyring, path):
    path.write_bytes(path.read_bytes()[:-30])
    assert code_of(keyring.mac_key, "audit") is Code.KEYRING_UNSAFE


def test_nothing_of_it_is_shown_a16(keyring, path):
    assert str(path) not in repr(keyring)
    with pytest.raises(RetentionError) as raised:
        LocalKeyring.create(path)
    assert str(path) not in str(raised.value)
