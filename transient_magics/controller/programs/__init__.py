"""Programs that ask Google, or the emulator, one thing: `python -m ...programs.NAME`.

The client starts them, each in a process of its own, so that no kernel loads Google's clients. They
print one line of JSON (answer.py); `bake` goes on in the background and writes a journal.
"""

from __future__ import annotations
