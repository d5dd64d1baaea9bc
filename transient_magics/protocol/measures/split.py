"""Which part of the dev split an evaluation saw, in words."""

from __future__ import annotations


def part_words(examples: int, complete: bool, of: int = 0, endless: bool = False) -> str:
    """`1,000 of 50,000 examples`, where it was a part; else nothing."""
    if complete or not examples:
        return ""
    return examples_words(examples, complete, of, endless)


def examples_words(examples: int, complete: bool, of: int = 0, endless: bool = False) -> str:
    """`all 360 examples`, `1,000 of 50,000 examples`, or `the first 12,800 examples` where nothing is known of more.

    `endless`: there was no end within the time that an evaluation has to find it.
    """
    many = f"{examples:,} example{'' if examples == 1 else 's'}"
    if complete:
        return f"all {many}"
    if of:
        return f"{examples:,} of {of:,} examples"
    return f"{many} of an endless dataset, or one too long to count" if endless else f"the first {many}"
