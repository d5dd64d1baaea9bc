"""pip that starts no other program: `python restricted_pip.py ...`.

A build would run a package's own code. `--only-binary` has the same purpose, but pip ignores it for
a package that is given by its location, as the requirements of wheels may be.
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
        raise PermissionError("the package has no wheel, so it would have to be built")


if __name__ == "__main__":
    sys.addaudithook(_refuse)
    # This file's folder.
    sys.path.pop(0)
    sys.argv[0] = "pip"
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
