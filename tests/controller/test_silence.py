"""Which silence is a VM's, and which is this machine's own."""

from __future__ import annotations

from transient_magics.controller.decisions.heartbeat import SECONDS, SilentVms

ALL = ("ps-0", "worker-0", "worker-1")


def after(silent: tuple[str, ...], polls: list[tuple[float, float, bool]]) -> SilentVms:
    """What is known when these VMs fell silent at 0 and Compute Engine was asked: (from, to, whether it answered)."""
    found = SilentVms()
    for vm in silent:
        found.add(vm, 0.0)
    for began, ended, answered in polls:
        found.polled(began, ended, answered=answered)
    return found


def test_a_vm_that_is_called_running_and_does_not_answer_for_a_minute_is_given_up() -> None:
    prompt = [(second, second + 0.2, True) for second in range(0, 60, 5)]
    assert after(("worker-0",), prompt).given_up(ALL, 60) == []
    late = after(("worker-0",), [*prompt, (SECONDS + 1, SECONDS + 1.2, True)])
    assert late.given_up(ALL, SECONDS + 2) == ["worker-0"]
    late.remove("worker-0")
    assert late.given_up(ALL, SECONDS + 3) == []


def test_while_compute_engine_is_not_heard_either_nobody_is_given_up() -> None:
    failed = after(("worker-0",), [(0, 30, False), (31, 75, False), (77, 77.2, True)])
    assert failed.given_up(ALL, 78) == []
    hung = after(("worker-0",), [(4, 95, True), (100, 100.2, True)])
    assert hung.given_up(ALL, 101) == [], "the answer was as long on its way as the VM was silent"
    hung.polled(95 + SECONDS + 1, 95 + SECONDS + 1.2, answered=True)
    assert hung.given_up(ALL, 200) == ["worker-0"], "it has had its minute since then"
    assert after(("worker-0",), []).given_up(ALL, 100) == [], "nobody was asked"


def test_where_no_vm_answers_the_way_to_them_is_closed_and_none_is_given_up() -> None:
    polls = [(second, second + 0.2, True) for second in range(0, 600, 5)]
    every = after(ALL, polls)
    assert every.given_up(ALL, 600) == []
    assert every.path_closed
    every.remove("ps-0")
    assert every.given_up(ALL, 601) == [], "the others have their time to follow"
    assert not every.path_closed
    every.polled(601 + SECONDS + 1, 601 + SECONDS + 1.2, answered=True)
    assert every.given_up(ALL, 670) == ["worker-0", "worker-1"]
    assert after(ALL[:1], polls).given_up(ALL[:1], 600) == ["ps-0"], "of one VM nobody can tell"
    moment = after(ALL, polls[:3])
    assert moment.given_up(ALL, 15) == []
    assert not moment.path_closed, "for a moment only"
