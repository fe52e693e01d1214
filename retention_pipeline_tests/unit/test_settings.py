import os
from pathlib import Path

import pytest

from retention_pipeline.errors import RetentionError
from retention_pipeline.settings import FILE_NAME, Settings, read_file, read_private, write_file

URL = "postgresql://someone:hidden-password@db.example/platform"


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def load(home, **environment):
    return Settings.load({"RETENTION_HOME": str(home), **environment})


def test_everything_has_a_place_below_home(home):
    settings = load(home)
    assert (settings.keyring, settings.data_root) == (home / "keyring.json", home / "archives")
    assert settings.catalog is None


def test_home_is_below_the_working_directory_unless_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Settings.load({}).home == tmp_path / ".retention"


def test_this_processs_environment_is_read_by_default(monkeypatch, home):
    monkeypatch.setenv("RETENTION_HOME", str(home))
    assert Settings.load().home == home


def test_a_second_terminal_reads_what_the_first_one_wrote(home):
    write_file(home, {"RETENTION_OPERATOR_URL": URL, "RETENTION_DATA_ROOT": "/srv/archives"})
    settings = load(home)
    assert settings.need_operator_url() == URL
    assert settings.data_root == Path("/srv/archives")


def test_the_platforms_own_setting_may_stand_in_the_file_too(home):
    """E7."""
    assert load(home).allow_ephemeral_payload is False
    write_file(home, {"WORKFLOW_ALLOW_EPHEMERAL_PAYLOAD": "true"})
    assert load(home).allow_ephemeral_payload is True


def test_the_environment_goes_before_the_file(home):
    write_file(home, {"RETENTION_OPERATOR_URL": URL})
    assert load(home, RETENTION_OPERATOR_URL="postgresql://other@db").operator_url == "postgresql://other@db"
    assert load(home, RETENTION_OPERATOR_URL="").operator_url == URL


def test_the_file_is_written_for_its_owner_alone_and_replaced_whole(home):
    for value in ("a", "b"):
        write_file(home, {"RETENTION_DATA_ROOT": value})
    assert (home / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in home.iterdir()] == [FILE_NAME]
    assert read_file(home) == {"RETENTION_DATA_ROOT": "b"}


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o700])
def test_a_file_that_others_could_use_is_refused(home, mode):
    write_file(home, {"RETENTION_OPERATOR_URL": URL})
    (home / FILE_NAME).chmod(mode)
    with pytest.raises(RetentionError, match="RETENTION_SETTING_INVALID"):
        load(home)


def test_a_link_or_a_pipe_in_the_files_place_is_refused(home):
    write_file(home, {"RETENTION_OPERATOR_URL": URL})
    (home / FILE_NAME).rename(home / "elsewhere")
    (home / FILE_NAME).symlink_to(home / "elsewhere")
    with pytest.raises(RetentionError, match="RETENTION_SETTING_INVALID"):
        load(home)
    (home / FILE_NAME).unlink()
    os.mkfifo(home / FILE_NAME, 0o600)
    with pytest.raises(RetentionError, match="RETENTION_SETTING_INVALID"):
        load(home)


def test_comments_and_blank_lines_are_passed_over(home):
    write_file(home, {})
    (home / FILE_NAME).write_text(f"# written by hand\n\nRETENTION_WORKER_URL={URL}\n")
    assert load(home).worker_url == URL


@pytest.mark.parametrize("line", [f"export RETENTION_WORKER_URL={URL}", URL, "PATH=/bin", "RETENTION_X"])
def test_a_line_that_is_none_is_named_by_number_alone(home, line):
    write_file(home, {})
    (home / FILE_NAME).write_text(f"# first\n{line}\n")
    with pytest.raises(RetentionError, match=r"Line 2 .*") as caught:
        load(home)
    assert "hidden-password" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RETENTION_WORKER_URL", "mysql://someone:hidden@db"),
        ("RETENTION_OPERATOR_URL", "hidden"),
        ("RETENTION_OWNER_URL", "host=db password=hidden"),
        ("RETENTION_DAGSTER_URL", "ftp://hidden"),
        ("RETENTION_DAGSTER_URL", "http://[hidden"),
        ("RETENTION_CATALOG", "~hidden-nobody/catalog.yaml"),
        ("RETENTION_KEYRING", "hidden\0"),
    ],
)
def test_a_wrong_setting_is_named_and_its_value_is_not(home, name, value):
    with pytest.raises(RetentionError) as caught:
        load(home, **{name: value})
    assert (caught.value.code, caught.value.exit_code) == ("RETENTION_SETTING_INVALID", 2)
    assert name in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("which", ["worker", "operator", "owner"])
def test_what_is_missing_is_named(home, which):
    with pytest.raises(RetentionError, match=f"RETENTION_SETTING_MISSING: RETENTION_{which.upper()}_URL"):
        getattr(load(home), f"need_{which}_url")()


def test_no_password_is_in_the_representation(home):
    urls = dict.fromkeys(("RETENTION_WORKER_URL", "RETENTION_OPERATOR_URL", "RETENTION_OWNER_URL"), URL)
    assert "hidden-password" not in repr(load(home, **urls))


KMS = {
    "RETENTION_KEY_PROVIDER": "aws-kms",
    "RETENTION_KMS_KEY_ID": "arn:aws:kms:eu-central-1:111122223333:key/0b7c3c3e-0000-4000-8000-000000000000",
    "RETENTION_KMS_REGION": "eu-central-1",
    "RETENTION_KMS_CREDENTIALS": "/etc/retention/kms.json",
}


def test_the_key_service_is_named_by_four_settings(home):
    """A18."""
    settings = load(home, **KMS)
    assert settings.wrap_by_kms
    assert (settings.kms.region, settings.kms.mac, settings.kms.endpoint) == ("eu-central-1", None, None)
    assert "111122223333" not in repr(settings)
    back = load(home, **{**KMS, "RETENTION_KEY_PROVIDER": "keyring"})
    assert not back.wrap_by_kms
    assert back.kms == settings.kms  # what the service wrapped still opens
    assert load(home).kms is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RETENTION_KEY_PROVIDER", "vault"),
        ("RETENTION_KMS_KEY_ID", ""),
        ("RETENTION_KMS_KEY_ID", "alias/retention"),
        ("RETENTION_KMS_KEY_ID", "arn:aws:kms:eu-central-1:111122223333:alias/retention"),
        ("RETENTION_KMS_MAC_KEY_ID", "alias/mac"),
        ("RETENTION_KMS_REGION", ""),
        ("RETENTION_KMS_CREDENTIALS", ""),
        ("RETENTION_KMS_ENDPOINT", "kms.example.org"),
    ],
)
def test_a_key_service_that_is_half_told_is_refused(home, name, value):
    with pytest.raises(RetentionError, match=name) as raised:
        load(home, **{**KMS, name: value})
    assert "alias/retention" not in str(raised.value)


def test_credentials_that_others_could_read_are_refused(tmp_path):
    path = tmp_path / "kms.json"
    path.write_text("{}")
    path.chmod(0o600)
    assert read_private(path, "RETENTION_KMS_CREDENTIALS", 100) == b"{}"
    path.chmod(0o640)
    for place in (path, tmp_path / "none", tmp_path):
        with pytest.raises(RetentionError, match="RETENTION_KMS_CREDENTIALS") as raised:
            read_private(place, "RETENTION_KMS_CREDENTIALS", 100)
        assert str(tmp_path) not in str(raised.value)
