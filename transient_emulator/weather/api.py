"""The weather over HTTP: GET and PATCH at `/emulator/v1/weather`.

PATCH sets what its JSON object names.

The keys are those of `settings.Settings`. The values are the texts after the option of the same
name, or plain numbers. A key with null is set to fair weather, an absent key stays as it is.
`{"reset": true}` sets everything to fair weather. A file with revocations is sent as `{"name": ...,
"csv": its text}`. An invalid change is refused as a whole, with 400 and one sentence.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from transient_magics.errors import DeclarationError, to_message

from ..instances import Record
from ..rest import wire
from ..rest.calls import answering, body
from .weather import Weather

PATH = "/emulator/v1/weather"


class WeatherApi:
    """The two routes of the weather. `vms` returns all VMs."""

    def __init__(self, weather: Weather, vms: Callable[[], list[Record]]) -> None:
        self._weather = weather
        self._vms = vms

    def add_to(self, application: web.Application) -> None:
        """Register the routes."""
        application.router.add_get(PATH, answering(self._get))
        application.router.add_patch(PATH, answering(self._patch))

    def _get(self, request: web.Request) -> dict[str, object]:
        return self._weather.to_json(self._vms())

    async def _patch(self, request: web.Request) -> dict[str, object]:
        change = await body(request)
        try:
            self._weather.change(change)
        except DeclarationError as error:
            raise wire.ApiError(400, "invalid", str(error), to_message(error)) from None
        return self._weather.to_json(self._vms())
