"""The product, as a resource that connects to nothing before a step uses it."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from retention_pipeline.app import App


class ProductResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # it is its own value
    """Opens the product from this process's settings, for as long as one step lasts."""

    @contextmanager
    def open(self) -> Iterator[App]:
        """An app, closed at the end of the block."""
        with App.from_environment() as app:
            yield app
