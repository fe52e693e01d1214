"""The servers of the demo and the tests keep what they are given, let nobody in, and die with their owner."""

import contextlib
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path

import boto3
import psycopg
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from retention_pipeline import clock
from retention_pipeline.dev import processes, quarters
from retention_pipeline.dev.cleaning import clean
from retention_pipeline.dev.cluster import packaged
from retention_pipeline.dev.postgres import EmbeddedPostgres
from retention_pipeline.dev.seaweed import EmbeddedS3, _program
from retention_pipeline.dev.state import StateFolder, is_free
from retention_pipeline.errors import Code, Refused, Unavailable

CHECKOUT = Path(__file__).resolve().parents[2]
AS_ROOT = os.geteuid() == 0
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join((str(CHECKOUT), str(packaged().parents[2]))),
    "PATH": os.pathsep.join((str(_program().parent), os.defpath)),
}

OWNER = """
import os, sys, time
from pathlib import Path
from retention_pipeline.dev.cluster import packaged
from retention_pipeline.dev.postgres import EmbeddedPostgres
from retention_pipeline.dev.seaweed import EmbeddedS3, _program

kind, state, bin_dir, forks = sys.argv[1:]
if kind == "postgres":
    server = EmbeddedPostgres(Path(state), bin_dir=Path(bin_dir) if bin_dir else None, durable=False)
else:
    server = EmbeddedS3(Path(state))
with server:
    child = os.fork() if forks else -1
    if child != 0:
        print(server.pid, server._server._shim.pid, child, flush=True)
    time.sleep(120)
"""


class Owner:
    """Another process that owns a server."""

    def __init__(self, kind, state, bin_dir=None, *, forks=False):
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, kind, str(state), str(bin_dir or ""), "yes" if forks else ""],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
        )
        self.server, self.shim, self.child = map(int, self.process.stdout.readline().split())
        self.identity = processes.identity(self.server)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        if self.child > 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


def gone(identity: str, seconds: float = 10) -> bool:
    end = clock.monotonic() + seconds
    while processes.is_alive(identity):
        if clock.monotonic() > end:
            return False
        clock.sleep(0.02)
    return True


def traces(state: Path, pid: int) -> list[str]:
    """What a server left outside its folder: System V segments that it made, and sockets at its ports."""
    rows = (row.split() for row in Path("/proc/sysvipc/shm").read_text(encoding="ascii").splitlines()[1:])
    ports = json.loads((state / "ports.json").read_text()) if (state / "ports.json").exists() else {}
    sockets = (path for port in ports.values() for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"))
    return [f"segment {row[1]}" for row in rows if int(row[4]) == pid] + [path.name for path in sockets]


def server(kind, state, pg_bin):
    return EmbeddedPostgres(state, bin_dir=pg_bin, durable=False) if kind == "postgres" else EmbeddedS3(state)


@pytest.fixture(scope="module")
def own(states) -> Path:
    """State folders that these tests start and stop servers in, one after the other."""
    return states / "own"


@pytest.fixture
def state(own, request) -> Path:
    """The state folder of this test's kind of server."""
    return own / request.node.callspec.params["kind"] if hasattr(request.node, "callspec") else own / "postgres"


# PostgreSQL


def test_a_database_is_the_same_after_a_restart(state, pg_bin):
    with EmbeddedPostgres(state, bin_dir=pg_bin, durable=False) as first:
        with psycopg.connect(first.superuser_url(), autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
        url = first.superuser_url()
    with EmbeddedPostgres(state, bin_dir=pg_bin, durable=True) as second, psycopg.connect(url) as connection:
        assert second.superuser_url() == url
        assert connection.execute("SELECT number FROM kept").fetchone() == (7,)
        assert connection.execute("SHOW fsync").fetchone() == ("on",)


def test_a_wrong_password_is_refused_on_every_way_in(pg):
    with psycopg.connect(pg.superuser_url()) as connection:
        rules = connection.execute("SELECT DISTINCT auth_method FROM pg_hba_file_rules").fetchall()
        sockets = connection.execute("SHOW unix_socket_directories").fetchone()[0].strip('"')
    assert rules == [("scram-sha-256",)]
    for url in (pg.url("postgres", "wrong", "postgres"), f"host={sockets} port={pg.port} user=postgres password=wrong"):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(url)


def test_names_and_passwords_of_any_shape_fit_into_a_url(pg):
    name, password = "an odd/na@me", "p:w/%?#é"
    with psycopg.connect(pg.superuser_url(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE \"{name}\" LOGIN PASSWORD '{password}'")
        try:
            with psycopg.connect(pg.url(name, password, "postgres")) as other:
                assert other.execute("SELECT current_user").fetchone() == (name,)
        finally:
            connection.execute(f'DROP ROLE "{name}"')


def test_postgres_runs_with_the_settings_that_the_project_needs(pg):
    wanted = {
        "TimeZone": "UTC",
        "max_connections": "100",
        "max_locks_per_transaction": "256",
        "dynamic_shared_memory_type": "mmap",
        "server_encoding": "UTF8",
        "fsync": "off",
    }
    with psycopg.connect(pg.superuser_url()) as connection:
        assert {name: connection.execute(f"SHOW {name}").fetchone()[0] for name in wanted} == wanted


def test_postgres_never_runs_as_root_and_shows_its_files_to_nobody(pg):
    data, run = pg._home / "data", pg._home / "run"
    uid = Path(f"/proc/{pg.pid}").stat().st_uid
    assert uid == (quarters.SERVER_UID if AS_ROOT else os.geteuid())
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (data, run)} == {0o700}
    private = [pg._folder.path / name for name in ("superuser-password", "postgres.log", "running.json")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}


def test_a_port_that_is_taken_is_left_to_its_owner(state, pg_bin, monkeypatch):
    with EmbeddedPostgres(state, bin_dir=pg_bin, durable=False) as first:
        port = first.port
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        # The look at the port comes too early in the worst case.
        looks = iter([True])
        monkeypatch.setattr("retention_pipeline.dev.postgres.is_free", lambda _port: next(looks, False))
        with EmbeddedPostgres(state, bin_dir=pg_bin, durable=False) as second:
            assert second.port != port
        with pytest.raises(Unavailable) as failure:
            EmbeddedPostgres(state, bin_dir=pg_bin, durable=False, port=port).start()
    assert failure.value.code is Code.EMBEDDED_FAILED
    assert str(state) not in str(failure.value)
    with EmbeddedPostgres(state, bin_dir=pg_bin, durable=False, port=port) as third:
        assert third.port == port


def test_the_database_of_another_release_is_refused(state, pg_bin, monkeypatch):
    with EmbeddedPostgres(state, bin_dir=pg_bin, durable=False):
        pass
    monkeypatch.setattr("retention_pipeline.dev.cluster.release", lambda _programs: "99")
    with pytest.raises(Refused) as refusal:
        EmbeddedPostgres(state, bin_dir=pg_bin).start()
    assert refusal.value.code is Code.EMBEDDED_INCOMPATIBLE


def test_nothing_is_left_when_the_server_itself_is_killed(state, pg_bin):
    with EmbeddedPostgres(state, bin_dir=pg_bin, durable=False) as first:
        pid = first.pid
        assert traces(state, pid)
        os.kill(pid, signal.SIGKILL)
        first._server.wait(10)
    assert traces(state, pid) == []
    with EmbeddedPostgres(state, bin_dir=pg_bin, durable=False) as second, psycopg.connect(second.superuser_url()):
        pass


def test_a_dead_servers_file_that_names_another_process_is_in_nobodys_way(state, pg_bin):
    with EmbeddedPostgres(state, bin_dir=pg_bin, durable=False) as first:
        file = first._pid_file
        lines = file.read_text(encoding="utf-8").splitlines()
    bystander = subprocess.Popen(["sleep", "60"], user=quarters.SERVER_UID if AS_ROOT else None)
    try:
        file.write_text("\n".join([str(bystander.pid), *lines[1:]]) + "\n", encoding="utf-8")
        with EmbeddedPostgres(state, bin_dir=pg_bin, durable=False) as second, psycopg.connect(second.superuser_url()):
            assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_server_that_outlived_its_owner_makes_way(state, pg_bin):
    with EmbeddedPostgres(state, bin_dir=pg_bin, durable=False) as first:
        command = Path(f"/proc/{first.pid}/cmdline").read_bytes().split(b"\0")[:-1]
        file, uid = first._pid_file, quarters.SERVER_UID if AS_ROOT else None
    stale = subprocess.Popen(command, user=uid, group=uid, cwd="/", stderr=subprocess.DEVNULL)
    try:
        while not (file.exists() and "ready" in file.read_text(encoding="utf-8")):
            clock.sleep(0.02)
        folder = StateFolder(state, mode=0o711)
        folder.claim()
        folder.record(stale.pid)
        folder.release()
        with EmbeddedPostgres(state, bin_dir=pg_bin, durable=False) as second, psycopg.connect(second.superuser_url()):
            assert stale.wait(1) == 0
    finally:
        stale.kill()
        stale.wait()


def test_only_the_recorded_process_is_ended_not_one_with_its_number(tmp_path):
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        pid, start, boot = processes.identity(bystander.pid).split(":")
        folder = StateFolder(tmp_path)
        folder.keep("running.json", f'{{"server": "{pid}:{int(start) - 1}:{boot}"}}')
        folder.claim()
        folder.release()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.skipif(not AS_ROOT, reason="an ordinary user's server runs as that user")
def test_root_behind_closed_doors_gets_a_private_folder_that_cleaning_removes(tmp_path, capfd):
    tmp_path.chmod(0o700)
    package = packaged().parents[1]
    for part in (package, package.with_name(f"{package.name}.libs")):
        subprocess.run(["cp", "-r", str(part), str(tmp_path / part.name)], check=True)
    programs = tmp_path / packaged().relative_to(package.parent)
    for _ in range(2):
        with EmbeddedPostgres(tmp_path / "state", bin_dir=programs, durable=False) as server:
            home = server._home
            with psycopg.connect(server.superuser_url()):
                assert home.stat().st_uid == 0
    assert capfd.readouterr().err.count(str(home)) == 1
    clean(tmp_path)
    assert not home.exists()
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("kind", ["postgres", "s3"])
def test_servers_work_for_an_ordinary_user(kind, states, pg_bin):
    python = next((p for p in (Path(sys.executable), Path("/usr/bin/python3.11")) if _anyone_can_run(p)), None)
    if AS_ROOT and (python is None or not quarters.reachable(CHECKOUT)):
        pytest.skip("no ordinary user can reach this checkout and a Python of this release")
    folder = states / f"user-{kind}"
    folder.mkdir(mode=0o700)
    uid = 65534 if AS_ROOT else os.geteuid()
    os.chown(folder, uid, -1)
    script = OWNER.replace("time.sleep(120)", "print(*{p.stat().st_uid for p in Path(state).rglob('*')}, flush=True)")
    answer = subprocess.run(
        [str(python or sys.executable), "-B", "-c", script, kind, str(folder), str(pg_bin or ""), ""],
        env=ENVIRONMENT,
        user=uid if AS_ROOT else None,
        group=uid if AS_ROOT else None,
        extra_groups=[] if AS_ROOT else None,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=30,
    )
    assert answer.stdout.splitlines()[1] == str(uid)
    clean(folder)


def _anyone_can_run(program: Path) -> bool:
    return program.exists() and quarters.reachable(program.resolve().parent) and quarters.reachable(program.parent)


# Both servers


@pytest.mark.parametrize("kind", ["postgres", "s3"])
def test_servers_listen_on_the_loopback_address_only(kind, request):
    shared = request.getfixturevalue("pg" if kind == "postgres" else "s3")
    found = processes.listeners(shared.pid)
    assert ("127.0.0.1", shared.port) in found
    assert {address for address, _ in found} == {"127.0.0.1"}


@pytest.mark.parametrize("kind", ["postgres", "s3"])
def test_a_second_owner_is_refused_and_the_first_is_not_disturbed(kind, state, pg_bin):
    with Owner(kind, state, pg_bin) as owner:
        with pytest.raises(Refused) as refusal:
            server(kind, state, pg_bin).start()
        assert refusal.value.code is Code.EMBEDDED_IN_USE
        with pytest.raises(Refused):
            clean(state)
        assert processes.is_alive(owner.identity)


@pytest.mark.parametrize("kind", ["postgres", "s3"])
def test_one_process_can_not_own_a_server_twice(kind, request, pg_bin):
    shared = request.getfixturevalue("pg" if kind == "postgres" else "s3")
    with pytest.raises(Refused):
        server(kind, shared._folder.path, pg_bin).start()


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("postgres", signal.SIGKILL),
        ("postgres", signal.SIGTERM),
        ("postgres", signal.SIGINT),
        ("s3", signal.SIGKILL),
        ("s3", signal.SIGTERM),
    ],
)
def test_a_server_dies_with_its_owner(kind, how, state, pg_bin):
    with Owner(kind, state, pg_bin) as owner:
        assert traces(state, owner.server)
        owner.process.send_signal(how)
        owner.process.wait()
        if how is signal.SIGKILL:
            # At once, while the old server may still be on its way out.
            with server(kind, state, pg_bin) as second:
                assert second.pid != owner.server
        assert gone(owner.identity)
    assert gone(processes.identity(owner.shim) or "")
    assert traces(state, owner.server) == []


def test_a_server_dies_with_its_owner_though_a_forked_process_lives_on(state, pg_bin):
    with Owner("postgres", state, pg_bin, forks=True) as owner:
        owner.process.kill()
        owner.process.wait()
        assert gone(owner.identity)
        assert processes.identity(owner.child)
        with EmbeddedPostgres(state, bin_dir=pg_bin, durable=False):
            pass


@pytest.mark.parametrize("kind", ["postgres", "s3"])
def test_a_server_dies_even_if_its_watcher_is_killed_with_the_owner(kind, state, pg_bin):
    with Owner(kind, state, pg_bin) as owner:
        os.kill(owner.process.pid, signal.SIGSTOP)
        os.kill(owner.shim, signal.SIGKILL)
        os.kill(owner.process.pid, signal.SIGKILL)
        assert gone(owner.identity)


@pytest.mark.parametrize("kind", ["postgres", "s3"])
def test_a_failed_start_leaves_nothing_running_and_the_folder_free(kind, state, pg_bin, monkeypatch):
    broken = server(kind, state, pg_bin)

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(broken, "_is_ready", lambda *_: interrupted())
    with pytest.raises(KeyboardInterrupt):
        broken.start()
    assert broken._server is None
    folder = StateFolder(state, mode=0o711)
    folder.claim()
    folder.release()


# S3


def client(s3, secret=None, key=None):
    return boto3.client(
        "s3",
        endpoint_url=s3.endpoint,
        region_name=s3.region,
        aws_access_key_id=key or s3.access_key,
        aws_secret_access_key=secret or s3.secret_key,
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )


@pytest.fixture
def bucket(s3, request):
    name = f"b{abs(hash(request.node.name)) % 10**10}"
    store = client(s3)
    store.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
    yield name
    store.close()


def test_objects_and_credentials_are_the_same_after_a_restart_that_had_to_take_other_ports(own, monkeypatch):
    with EmbeddedS3(own / "s3") as first:
        store = client(first)
        store.create_bucket(Bucket="kept")
        store.put_object(Bucket="kept", Key="object", Body=b"bytes")
        store.close()
        secret, ports = first.secret_key, first.ports
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", ports["filer.grpc"]))
        other.listen()
        # The look at the ports comes too early in the worst case.
        looks = iter([True] * len(ports))
        monkeypatch.setattr("retention_pipeline.dev.seaweed.is_free", lambda port: next(looks, False) or is_free(port))
        with EmbeddedS3(own / "s3") as second:
            assert not set(second.ports.values()) & {ports["filer.grpc"]}
            assert processes.listeners(second.pid) <= {("127.0.0.1", port) for port in second.ports.values()}
            store = client(second, secret=secret)
            assert store.get_object(Bucket="kept", Key="object")["Body"].read() == b"bytes"
            store.close()


@pytest.mark.parametrize(
    ("wrong", "code"), [({"secret": "x" * 40}, "SignatureDoesNotMatch"), ({"key": "nobody"}, "InvalidAccessKeyId")]
)
def test_wrong_credentials_are_refused(s3, bucket, wrong, code):
    store = client(s3, **wrong)
    with pytest.raises(ClientError) as refusal:
        store.put_object(Bucket=bucket, Key="object", Body=b"bytes")
    assert refusal.value.response["Error"]["Code"] == code
    store.close()


def test_a_second_create_of_an_object_is_refused_and_changes_nothing(s3, bucket):
    store = client(s3)
    store.put_object(Bucket=bucket, Key="object", Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError) as refusal:
        store.put_object(Bucket=bucket, Key="object", Body=b"second", IfNoneMatch="*")
    assert refusal.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412
    assert store.get_object(Bucket=bucket, Key="object")["Body"].read() == b"first"
    store.close()


def test_of_many_creates_at_once_one_wins(s3, bucket):
    outcomes = []
    store = client(s3)

    def create(body):
        try:
            store.put_object(Bucket=bucket, Key="object", Body=body, IfNoneMatch="*")
            outcomes.append(body)
        except ClientError:
            outcomes.append(None)

    threads = [threading.Thread(target=create, args=(bytes([number]),)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [body for body in outcomes if body is not None]
    assert (len(outcomes), len(winners)) == (6, 1)
    assert store.get_object(Bucket=bucket, Key="object")["Body"].read() == winners[0]
    store.close()


def test_versions_are_kept_once_versioning_is_enabled(s3):
    store = client(s3)
    store.create_bucket(Bucket="versioned")
    assert "Status" not in store.get_bucket_versioning(Bucket="versioned")
    store.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    assert store.get_bucket_versioning(Bucket="versioned")["Status"] == "Enabled"
    first = store.put_object(Bucket="versioned", Key="object", Body=b"first")["VersionId"]
    store.put_object(Bucket="versioned", Key="object", Body=b"second")
    assert store.get_object(Bucket="versioned", Key="object", VersionId=first)["Body"].read() == b"first"
    store.close()


def test_a_locked_version_stays(s3, bucket):
    store = client(s3)
    lock = {"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": clock.utc_now() + timedelta(hours=1)}
    version = store.put_object(Bucket=bucket, Key="object", Body=b"bytes", **lock)["VersionId"]
    with pytest.raises(ClientError) as refusal:
        store.delete_object(Bucket=bucket, Key="object", VersionId=version)
    assert refusal.value.response["Error"]["Code"] == "AccessDenied"
    assert store.get_object(Bucket=bucket, Key="object", VersionId=version)["Body"].read() == b"bytes"
    store.close()


def test_no_other_port_reads_or_removes_an_object(s3, bucket):
    store = client(s3)
    store.put_object(Bucket=bucket, Key="object", Body=b"in plain sight" * 300)
    paths = ("/", f"/buckets/{bucket}/", f"/buckets/{bucket}/object", f"/{bucket}/object", "/1,01", "/dir/assign")
    paths += (
        "/dir/status",
        "/vol/status",
        "/col/delete?collection=x",
        "/admin/assign_volume?volume=99",
        "/ui/index.html",
    )
    answered = set()
    for service, port in s3.ports.items():
        if service == "s3" or service.endswith(".grpc"):
            continue
        for method in ("GET", "DELETE", "POST", "PUT"):
            for path in paths:
                status, body = ask(port, method, path)
                assert b"in plain sight" not in body
                assert b'"fid"' not in body
                if status < 400:
                    answered.add((service, path))
    # The master's front page tells its version and free space, and nothing else.
    assert answered <= {("master", "/"), ("master", "/ui/index.html")}
    assert store.get_object(Bucket=bucket, Key="object")["Body"].read() == b"in plain sight" * 300
    store.close()


def ask(port: int, method: str, path: str) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_internal_calls_need_a_certificate(s3):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(s3._folder.path / "authority.crt")
    context.set_alpn_protocols(["h2"])
    for service, port in s3.ports.items():
        if service.endswith(".grpc"):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                converse(port, context)


def converse(port: int, context: ssl.SSLContext) -> None:
    """Under TLS 1.3 the refusal of a client arrives with the first answer."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        secure.recv(100)


def test_the_store_shows_its_files_to_nobody(s3):
    mode = stat.S_IMODE(s3._folder.path.stat().st_mode)
    files = {stat.S_IMODE(path.stat().st_mode) for path in s3._folder.path.iterdir() if path.is_file()}
    assert (mode, files) == (0o700, {0o600})
