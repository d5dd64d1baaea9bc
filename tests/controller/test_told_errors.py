"""An error that is raised in another process arrives here whole: what is wrong, where, and how to mend it."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.examples import examples
from transient_emulator.rest import wire
from transient_magics import errors
from transient_magics.client import commands
from transient_magics.client.project import emulator_api
from transient_magics.controller.commands import serve
from transient_magics.controller.programs import print_answer
from transient_magics.errors import ClusterError, DeclarationError, TransientError, checked_answer, to_message
from transient_magics.protocol.cluster_commands import Command, Ping, Revoke


def below(cls: type[TransientError]) -> list[type[TransientError]]:
    return [cls, *(each for child in cls.__subclasses__() for each in below(child))]


EVERY = [cls for cls in below(TransientError) if cls.__module__ == errors.__name__]
TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)
RAISED = st.builds(lambda cls, what, where, fix: cls(what, where=where, fix=fix), st.sampled_from(EVERY), *[TEXTS] * 3)


def same(found: BaseException, error: TransientError) -> bool:
    """Whether an error is another one, as far as its user can tell."""
    assert isinstance(found, TransientError)
    return (type(found), found.what, found.where, found.fix) == (type(error), error.what, error.where, error.fix)


def test_there_are_all_kinds_of_them() -> None:
    assert {ClusterError, DeclarationError, errors.StockoutError, errors.HostKeyError} <= set(EVERY)


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raised=st.lists(RAISED, min_size=1, max_size=8))
def test_over_a_command_socket_and_over_two_on_the_way_through_a_mirror(
    tmp_path: Path, raised: list[TransientError]
) -> None:
    """As from the controller to the kernel, here or from its VM."""
    waiting = list(raised)

    async def controller(command: Command) -> dict[str, Any]:
        raise waiting[0]

    async def mirror(command: Command) -> dict[str, Any]:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "a")
        writer.write(command.encoded)
        line = await reader.readline()
        writer.close()
        return checked_answer(json.loads(line))

    async def live() -> None:
        async with serve(tmp_path / "a", controller), serve(tmp_path / "b", mirror):
            for error in raised:
                for name in "ab":
                    with pytest.raises(TransientError) as found:
                        await asyncio.to_thread(commands._request, tmp_path / name, Ping(), 30.0)
                    assert same(found.value, error)
                waiting.pop(0)

    asyncio.run(live())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"[1]", "not a JSON object"),
        (b"{", "Expecting"),
        (b"\xff", "decode"),
        (b'{"do": "dance"}', "unknown.*'dance'"),
        (b'{"do": "stop"}', "stop: .*'kind'"),
        (b'{"do": "stop", "name": "../x"}', "stop: name: '../x' is not a valid name"),
        (b'{"do": "resize", "spec": 7}', "resize: spec: must be an object"),
    ],
    ids=lambda value: "",
)
async def test_a_controller_refuses_what_is_no_command_and_hears_the_next_one(
    tmp_path: Path, line: bytes, said: str
) -> None:
    async def controller(command: Command) -> dict[str, Any]:
        return {"heard": command.do}

    async with serve(tmp_path / "a", controller):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "a")
        writer.write(line + b"\n" + Ping().encoded)
        with pytest.raises(ClusterError, match=said):
            checked_answer(json.loads(await reader.readline()))
        assert checked_answer(json.loads(await reader.readline())) == {"heard": "ping"}
        writer.close()


async def test_a_command_that_a_full_disk_prevents_is_answered(tmp_path: Path) -> None:
    async def controller(_: Command) -> dict[str, Any]:
        raise OSError(errno.ENOSPC, "No space left on device", "agreed.json")

    async with serve(tmp_path / "a", controller):
        with pytest.raises(
            ClusterError, match=r"command failed in the controller: No space left on device \(agreed\.json\)\."
        ):
            await asyncio.to_thread(commands._request, tmp_path / "a", Ping(), 30.0)


async def test_a_controller_is_asked_for_its_present_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def troubled(_: Command) -> dict[str, Any]:
        return {"trouble": "the disk is full"}

    async def silent(_: Command) -> dict[str, Any]:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(commands.places, "command_socket", lambda name: tmp_path / name)
    async with serve(tmp_path / "full", troubled), serve(tmp_path / "frozen", silent):
        told = [await asyncio.to_thread(commands.trouble, Path(name), 0.1) for name in ("full", "frozen", "absent")]
    assert told == ["the disk is full", "the controller of frozen has not answered within 0 s", ""]


def test_an_error_of_another_process_is_as_long_as_a_sentence_may_be() -> None:
    answer = {"ok": False, "error": "x" * 10**6, "where": "y" * 10**6, "fix": "\x1b[2J" * 10**6, "kind": "ClusterError"}
    with pytest.raises(ClusterError) as raised:
        checked_answer(answer)
    assert len(str(raised.value)) < 13_000
    assert "\x1b" not in str(raised.value)


def test_what_cannot_be_sent_is_refused_here(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="cannot be sent"):
        commands._line(Revoke(vm="worker-0", seconds=float("nan")))


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(error=RAISED)
def test_from_a_program_that_answers_one_question(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: TransientError
) -> None:
    async def work() -> dict[str, Any]:
        raise error

    assert print_answer(work()) == 1
    ended = SimpleNamespace(stdout=capsys.readouterr().out, stderr="")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: ended)
    with pytest.raises(TransientError) as found:
        commands.run_program("adopt", "Attaching")
    assert same(found.value, error)


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(error=RAISED)
def test_from_the_emulator(monkeypatch: pytest.MonkeyPatch, error: TransientError) -> None:
    body = wire.ApiError(400, "invalid", str(error), to_message(error)).body()
    response = SimpleNamespace(status=400, read=lambda: json.dumps(body).encode())
    connection = SimpleNamespace(request=lambda *_: None, getresponse=lambda: response, close=lambda: None)
    monkeypatch.setattr("http.client.HTTPConnection", lambda *_, **__: connection)
    with pytest.raises(TransientError) as found:
        emulator_api.ask("http://127.0.0.1:9", "PATCH", "/weather", {})
    assert same(found.value, error)


def test_a_command_that_another_controller_has_to_answer_is_sent_again(tmp_path: Path) -> None:
    """As in the moment in which a controller hands over to another machine's."""

    async def handed_over(command: Command) -> dict[str, Any]:
        raise ConnectionAbortedError("another machine runs the controller")

    async def answer() -> bytes:
        async with serve(tmp_path / "s", handed_over):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            writer.write(Ping().encoded)
            received = await reader.readline()
            writer.close()
            return received

    assert asyncio.run(answer()) == b"", "the client connects again after this"
