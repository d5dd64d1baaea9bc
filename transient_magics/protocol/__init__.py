"""Interfaces of the two ends of a connection to a VM, and the checks of what arrives from there.

This is the bottom layer. It uses only the standard library, so every VM has all of it. `checks`
turns the annotations of a class into checks of type, range and size, and defines valid names.
`events` defines events, `vm_events` those that VMs report, and `run` the declaration of a run.
`cluster_commands`, `agent_commands` and `chief_messages` define the messages over sockets. Errors
here are ValueErrors; the layers above convert them into their own.
"""
