"""`python restricted_pip.py ...` is pip, but that it starts no other program: what is built would run a
package's own code.

`--only-binary` says so too, but pip does not heed it for a package that is named by its place, as
wheels may name what they need.
"""

import runpy
import sys

_EVENTS = frozenset(
    {
        "subprocess.Popen",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.system",
    }
)


def _refuse(event: str, arguments: object) -> None:
    if event in _EVENTS:
        raise PermissionError("a package without a wheel would have to be built")


if __name__ == "__main__":
    sys.addaudithook(_refuse)
    sys.path.pop(0)  # this file's folder
    sys.argv[0] = "pip"
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
