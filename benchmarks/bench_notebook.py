"""How long a notebook waits: `%load_ext`, the first and the next `%transient_cluster`, in fresh kernels."""

from __future__ import annotations

import argparse

from _common import median, own_home, say
from jupyter_client.manager import start_new_kernel

TIMED = """
import time, sys
def timed(name, line):
    began = time.perf_counter()
    get_ipython().run_line_magic(name, line)
    return 1000 * (time.perf_counter() - began)
print("FIGURES", timed("load_ext", "transient_magics"),
      timed("transient_cluster", "cpu --name {first}"), timed("transient_cluster", "cpu --name {second}"),
      any(name in sys.modules for name in ("google.cloud", "tensorflow")))
"""


def main() -> None:
    """Print medians in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three kernels rather than seven")
    kernels = 3 if parser.parse_args().quick else 7
    rows: list[list[float]] = []
    heavy = False
    with own_home():
        for number in range(kernels):
            manager, client = start_new_kernel(kernel_name="python3")
            said: list[str] = []
            code = TIMED.format(first=f"a{number}", second=f"b{number}")
            client.execute_interactive(
                code, timeout=60, output_hook=lambda message, said=said: said.append(message["content"].get("text", ""))
            )
            figures = next(line for text in said for line in text.splitlines() if line.startswith("FIGURES")).split()
            rows.append([float(value) for value in figures[1:4]])
            heavy = heavy or figures[4] == "True"
            client.execute_interactive(
                f"%transient_cluster delete a{number}\n%transient_cluster delete b{number}", timeout=120
            )
            client.stop_channels()
            manager.shutdown_kernel(now=True)
    load, first, second = ([row[column] for row in rows] for column in range(3))
    say("%load_ext, median", median(load), "ms", "< 150")
    say("%transient_cluster, first in a kernel, median", median(first), "ms", "< 300")
    say("%transient_cluster, next, median", median(second), "ms", "< 100")
    print("google.cloud or TensorFlow imported in the kernel:", "yes" if heavy else "no")


if __name__ == "__main__":
    main()
