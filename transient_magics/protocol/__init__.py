"""What both ends of a connection to a VM agree upon, and how whatever comes from there is checked.

The ground floor: the standard library only, so that a VM carries it whole. `names` says what may be
called what, `checks` turns the annotations of a class into checks of type, range and size, `events`
is what an event is, `vm_events` are those that a VM tells, `run` is a run's declaration,
`cluster_commands`, `agent_commands` and `chief_messages` are what is said over sockets. Errors here
are ValueErrors, which the floors above turn into their own.
"""
