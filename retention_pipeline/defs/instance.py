"""Where Dagster keeps its history: PostgreSQL where it is configured, files on a laptop; never files in production (SPEC D6)."""

import logging
from typing import Any

from dagster._core.storage.base_storage import DagsterStorage
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
from dagster._serdes import ConfigurableClass, ConfigurableClassData
from dagster_postgres import DagsterPostgresStorage

from retention_pipeline.errors import Code, UsageFault
from retention_pipeline.settings import DAGSTER_STORAGE_URL, Settings


class RetentionStorage(DagsterStorage, ConfigurableClass):
    """What `dagster.yaml` names; it gives one of Dagster's own storages."""

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        """Nothing: no object of this class is ever made."""
        return None

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """No configuration: the settings say it."""
        return {}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Any) -> DagsterStorage:  # type: ignore[override]
        """The storage that this process's settings name.

        Raises:
            UsageFault: `SETTING_MISSING`, in production without a database for the history.
        """
        del config_value
        settings = Settings.load()
        if settings.dagster_storage_url is not None:
            # A bare postgresql:// would mean another driver, under which Dagster's notifications fail.
            url = f"postgresql+psycopg2://{settings.dagster_storage_url.partition('://')[2]}"
            logging.getLogger("dagster").info("The run history is in PostgreSQL.")
            return DagsterPostgresStorage(postgres_url=url, inst_data=inst_data)
        if settings.production:
            raise UsageFault(
                Code.SETTING_MISSING,
                f"{DAGSTER_STORAGE_URL} is not set: in production the run history is evidence, and needs a database.",
                remedy="Set it to the URL of Dagster's own database.",
            )
        logging.getLogger("dagster").info("The run history is in files, for this machine alone.")
        return DagsterSqliteStorage(base_dir=str(settings.home / "dagster" / "storage"), inst_data=inst_data)
