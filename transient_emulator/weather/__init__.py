"""The emulator's weather: what the emulated cloud does to VMs, and how fast its time passes.

There is one weather per emulator, shared by all clusters of the user. It is set and read over HTTP
(`api`) and kept in the state directory (`weather`). `settings` defines what can be set. Each of the
other modules is one thing that the weather does.
"""
