"""The panel's channel in a real kernel: what a page that is loaded again needs to draw it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

from tests.panels import stories

PATIENCE = 120.0
SHOW = """\
import pathlib
from tests.panels import stories
from transient_magics import panels
journal = pathlib.Path({path!r})
panels.show(stories.StoryCluster(journal), feed=stories.StoryFeed(journal))"""


@pytest.fixture
def kernel() -> Iterator[BlockingKernelClient]:
    manager, client = start_new_kernel(startup_timeout=PATIENCE, kernel_name="python3")
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.mark.slow  # a kernel starts
def test_a_widget_that_is_asked_for_its_state_says_which_wish_it_answers(
    kernel: BlockingKernelClient, tmp_path: Path
) -> None:
    stories.tell(tmp_path / "journal.jsonl", "short")
    kernel.execute(SHOW.format(path=str(tmp_path / "journal.jsonl")))
    opened = whole(kernel, "comm_open")
    widget = opened["content"]["comm_id"]
    assert opened["content"]["data"]["state"]["place"] == f"transient-{widget}", "by it a page finds the model"
    wish = kernel.session.msg("comm_msg", {"comm_id": widget, "data": {"method": "request_state"}})
    kernel.shell_channel.send(wish)
    answer = whole(kernel, "comm_msg")
    assert (answer["content"]["comm_id"], answer["content"]["data"]["method"]) == (widget, "update")
    assert answer["parent_header"].get("msg_id") == wish["header"]["msg_id"]


def whole(kernel: BlockingKernelClient, kind: str) -> dict[str, Any]:
    """The next message of a kind with a panel's whole state; everything else that the kernel says is passed over."""
    while True:
        message = kernel.get_iopub_msg(timeout=PATIENCE)
        if message["msg_type"] == kind and "_esm" in message["content"]["data"].get("state", {}):
            return message
