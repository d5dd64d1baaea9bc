"""The emulator's weather: what the emulated cloud does to VMs, and how fast its time passes.

One weather per emulator, shared by all clusters of the user, set and read over HTTP (`api`), kept in the state
directory (`weather`). `settings` says what can be set; `clock` what runs on emulated time; each of the
other modules is one thing that the weather does.
"""
