"""Picture a revocation in JupyterLab: `docs/revocation.gif` and `docs/quickstart.png`.

The quickstart runs in headless Chromium on the emulator. The program pictures the cluster's panel from the first steps
until the replacement of the revoked VM trains, and plays the frames faster than they were taken.
"""

from __future__ import annotations

import io
import sys
import time

from gallery import NOTEBOOKS, ROOT, opened_lab  # the folder of this program is on the path
from PIL import Image

ANIMATION, PICTURE = ROOT / "docs" / "revocation.gif", ROOT / "docs" / "quickstart.png"
CHANGES = {
    "--train-steps 1000": "--train-steps 3000",
    "run.reach(300)": "run.reach(200)",
    "hparams.learning_rate = 0.1": "hparams.learning_rate = 0.02",
}
"""What differs from the quickstart: the replacement joins before the end on a busy machine, too, and the loss still
falls then."""
PATIENCE_SECONDS = 560.0
FRAME_SECONDS = 1.5
MOST_FRAMES = 56
SHOWN_MILLISECONDS, LAST_MILLISECONDS = 250, 3_000
"""How long the animation shows a frame, and the last one."""
AFTERWARDS = 8
"""Frames after the replacement trains."""
COLOURS = 48
LARGEST_BYTES = 2_000_000
STORED_COLOURS = 128


def main() -> int:
    """Return 0 when both pictures are written."""
    with opened_lab(1.0) as lab:
        text = (NOTEBOOKS / "quickstart.ipynb").read_text(encoding="utf-8")
        for theirs, ours in CHANGES.items():
            if theirs not in text:
                raise ValueError(f"quickstart.ipynb has no {theirs!r}")
            text = text.replace(theirs, ours)
        (lab.folder / "quickstart.ipynb").write_text(text, encoding="utf-8")
        page = lab.open("quickstart", width=1180, height=1180)
        lab.run_all(page)
        panel = page.locator(".transient-panel").first
        panel.wait_for(state="visible")
        frames: list[Image.Image] = []
        left = AFTERWARDS
        until = time.monotonic() + PATIENCE_SECONDS
        while left:
            if time.monotonic() > until:
                raise TimeoutError(f"No worker was revoked and replaced within {PATIENCE_SECONDS:.0f} s")
            begun = time.monotonic()
            said = panel.inner_text()
            if "deleted" in said:
                raise RuntimeError("The run ended before its replacement trained: make the run longer (CHANGES)")
            if "loss" in said:
                frames.append(Image.open(io.BytesIO(panel.screenshot())).convert("RGB"))
            replaced = panel.locator("tr[data-key=worker-4]", has_text="training").count()
            if replaced and "revoked, replaced by worker-4" in said:
                left -= 1
            print(f"{len(frames)} frames", end="\r", flush=True)
            page.wait_for_timeout(max(0.0, FRAME_SECONDS - (time.monotonic() - begun)) * 1000)
        panel.evaluate("node => node.closest('.jp-Notebook').scrollTo(0, 0)")
        page.wait_for_timeout(1000)
        few_colours(Image.open(io.BytesIO(page.screenshot())), STORED_COLOURS).save(PICTURE, optimize=True)
    animate(frames)
    print(f"{ANIMATION.name}: {len(frames)} frames, {ANIMATION.stat().st_size / 1e6:.2f} MB")
    return 0


def few_colours(picture: Image.Image, colours: int) -> Image.Image:
    """Return a picture with a palette of its own."""
    return picture.convert("RGB").quantize(colours, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def animate(frames: list[Image.Image]) -> None:
    """Write the frames as one GIF with one palette, so that what stays the same takes no space."""
    size = max(frame.width for frame in frames), max(frame.height for frame in frames)
    every = max(1, -(-len(frames) // MOST_FRAMES))
    padded = []
    for frame in frames[::-every][::-1]:
        page = Image.new("RGB", size, "white")
        page.paste(frame)
        padded.append(page)
    palette = few_colours(padded[-1], COLOURS)
    drawn = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in padded]
    durations = [SHOWN_MILLISECONDS] * (len(drawn) - 1) + [LAST_MILLISECONDS]
    drawn[0].save(ANIMATION, save_all=True, append_images=drawn[1:], duration=durations, loop=0, optimize=True)
    written = ANIMATION.stat().st_size
    if written > LARGEST_BYTES:
        raise ValueError(f"{ANIMATION.name} has {written} bytes, more than {LARGEST_BYTES}: picture fewer frames")


if __name__ == "__main__":
    sys.exit(main())
