"""Whole histories of clusters and runs on a simulated clock: years in minutes, each of them again from its seed.

What decides is the real code: the controller's core (`controller/decisions/core.py`), the requests it makes
(`controller/vms/machines.py`), the journal's fold, the chief's state machine
(`runtime/parameter_server/chief/state.py`). What carries out is simulated here, and fails in every way:

- `clock.py`: the only time there is; `cloud.py`: Compute Engine; `steering.py`: one controller process after another;
- `training.py`: a chief and its workers on these VMs, their connections and the chief's disk;
- `observer.py`: what must always hold, told from outside: it sees what is asked of Compute Engine and what that has;
- `story.py`: a user, the weather, and a seed from which all of it follows.

A seed whose history once broke a promise is kept in `seeds.py` under a name that says what it found, and is played
again by every `make test`. To see the history of one: `python -m tests.simulation.story SEED`.
"""
