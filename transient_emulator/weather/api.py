"""The weather over HTTP: `GET /emulator/v1/weather` tells it, `PATCH` sets what its JSON object names.

The keys are those of `settings.Settings`, the values what people type after the option of the same name (or plain
numbers); null and absent differ: null is fair weather again. `{"reset": true}` makes everything fair. A file with
revocations comes as `{"name": ..., "csv": its text}`. What cannot be meant is refused whole, with 400 and one sentence.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from transient_magics.errors import DeclarationError, told

from ..instances import Record
from ..rest import wire
from ..rest.calls import answering, body
from .weather import Weather

PATH = "/emulator/v1/weather"


class WeatherApi:
    """The two routes, to be added to an application."""

    def __init__(self, weather: Weather, vms: Callable[[], list[Record]]) -> None:
        self._weather, self._vms = weather, vms

    def add_to(self, application: web.Application) -> None:
        """Register the routes."""
        application.router.add_get(PATH, answering(lambda request: self._weather.to_json(self._vms())))
        application.router.add_patch(PATH, answering(self._patch))

    async def _patch(self, request: web.Request) -> dict[str, object]:
        given = await body(request)
        try:
            self._weather.change(given)
        except DeclarationError as error:
            raise wire.ApiError(400, "invalid", str(error), told(error)) from None
        return self._weather.to_json(self._vms())
