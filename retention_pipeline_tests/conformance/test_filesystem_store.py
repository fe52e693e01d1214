"""What only a file system can do, or fail to do (A5, A12)."""

import os
import resource
import signal
import stat
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from retention_pipeline.errors import Code, RetentionError
from retention_pipeline.storage import filesystem
from retention_pipeline.storage.filesystem import FilesystemStore

PROJECT = Path(__file__).parents[2]
KEY, BODY = "2024/0a1b", b"body" * 1000


@pytest.fixture
def root(tmp_path):
    made = tmp_path / "root"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def store(root):
    return FilesystemStore(root, "tenants/t-1")


def put(store, key=KEY, body=BODY):
    return store.put_once(key, body, sha256=sha256(body).digest())


def code_of(call, *args):
    with pytest.raises(RetentionError) as raised:
        call(*args)
    assert raised.value.__cause__ is None
    return raised.value.code


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_files_and_folders_are_private_whatever_the_umask(store, root):
    before = os.umask(0)
    try:
        put(store)
    finally:
        os.umask(before)
    for path in root.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize("level", ["tenants", "tenants/t-1", "tenants/t-1/2024", "tenants/t-1/2024/0a1b@"])
def test_a_symlink_on_the_way_is_refused_and_nothing_is_written_through_it_a12(store, root, tmp_path, level):
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / level).parent.mkdir(parents=True, exist_ok=True)
    (root / level).symlink_to(outside)
    assert code_of(put, store) is Code.STORE_PATH_UNSAFE
    assert code_of(store.versions, KEY) is Code.STORE_PATH_UNSAFE
    assert code_of(store.delete, KEY, "0" * 32) is Code.STORE_PATH_UNSAFE
    assert files(outside) == []


def test_a_symlink_in_an_object_s_place_is_not_read_a12(store, root, tmp_path):
    version = put(store)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    path = root / "tenants/t-1/2024/0a1b@" / version
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(RetentionError) as raised, store.read(KEY, version):
        pass
    assert raised.value.code is Code.STORE_PATH_UNSAFE


@pytest.mark.parametrize("prefix", ["..", "a/../b", "/etc", "a//b", ".hidden"])
def test_a_prefix_that_leads_elsewhere_is_refused_a12(root, prefix):
    assert code_of(FilesystemStore, root, prefix) is Code.STORE_PATH_UNSAFE


def test_a_root_that_is_not_there_is_missing_and_is_not_made(root):
    absent = FilesystemStore(root / "not-mounted", "p")
    assert code_of(put, absent) is Code.STORE_MISSING
    assert list(root.iterdir()) == []


def test_a_root_that_others_may_write_to_is_a_finding(store, root):
    assert store.findings() == ()
    root.chmod(0o777)
    assert [finding.code for finding in store.findings()] == [Code.STORE_PATH_UNSAFE]


def test_a_full_disk_is_full_and_nothing_stays_behind_a8(store, root):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        assert code_of(put, store) is Code.STORE_FULL
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert files(root) == []
    assert store.versions(KEY) == ()
    put(store)


SEAMS = ["mkdir", "open", "fsync", "rename"]


@pytest.mark.parametrize("nth", range(1, 7))
@pytest.mark.parametrize("seam", SEAMS)
def test_a_writer_that_is_killed_leaves_a_whole_object_or_none_f2(root, seam, nth):
    program = f"""
import os, signal, sys
from pathlib import Path
from hashlib import sha256
from retention_pipeline.storage.filesystem import FilesystemStore
calls = 0
def deadly(*args, real=os.{seam}, **how):
    global calls
    calls += 1
    if calls == {nth}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **how)
store = FilesystemStore(Path(sys.argv[1]), "tenants/t-1")
body = b"body" * 1000
os.{seam} = deadly
store.put_once("2024/0a1b", body, sha256=sha256(body).digest())
"""
    done = subprocess.run([sys.executable, "-c", program, str(root)], check=False, cwd=PROJECT)
    assert done.returncode in {0, -signal.SIGKILL}
    store = FilesystemStore(root, "tenants/t-1")
    found = store.versions(KEY)
    for version in found:
        with store.read(KEY, version.version) as stream:
            assert stream.read(1 << 20) == BODY
    if not found:
        put(store)
    put(store, "2024/next")
    assert len(files(root)) == 2  # what the dead writer left was removed


def test_a_living_writer_s_file_is_not_removed(store, root, monkeypatch):
    real, seen = filesystem._written, []

    def meanwhile(incoming, generation, body):
        other = FilesystemStore(root, "tenants/t-1")
        if not seen:
            seen.append(generation)
            return _with_another_writer(real(incoming, generation, body), other)
        return real(incoming, generation, body)

    monkeypatch.setattr(filesystem, "_written", meanwhile)
    version = put(store)
    with store.read(KEY, version) as stream:
        assert stream.read(1 << 20) == BODY


class _with_another_writer:  # noqa: N801  reads as the function that it stands for
    def __init__(self, written, other):
        self.written, self.other = written, other

    def __enter__(self):
        self.written.__enter__()
        put(self.other, "2024/other")

    def __exit__(self, *exc):
        return self.written.__exit__(*exc)


def test_a_stranger_s_file_is_listed_and_can_t_be_read_as_an_object_a19(store, root):
    put(store)
    (root / "tenants/t-1/notes.txt").write_text("hello")
    found = {entry.key: entry.version for entry in store.walk()}
    assert found["notes.txt"] == ""
    assert set(found) == {KEY, "notes.txt"}


@pytest.mark.parametrize("version", ["../0a1b@/x", "", "Z" * 32, "../../../../../etc/passwd"])
def test_a_version_that_is_a_path_is_no_version_a12(store, version):
    put(store)
    with pytest.raises(RetentionError) as raised, store.read(KEY, version):
        pass
    assert raised.value.code is Code.OBJECT_MISSING
