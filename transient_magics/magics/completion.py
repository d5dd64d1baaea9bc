"""Tab completion in the lines of magics.

It completes sub-commands, options and their values, GPUs, zones, clusters, workers and runs, from
the table of options, the catalog and the folders of this machine's clusters, without a network. If
there are completions, those of IPython's other matchers (names of Python) are suppressed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)

from .. import places
from ..catalog import ACCELERATORS, ZONES, region, zones_with
from ..cli import arguments, options
from ..cli.option import Option
from ..kinds import KINDS, WORK_MAGICS
from ..protocol import layout

_OTHERS = ("work", "stop", "weather", "deflate", "measure", "lifetimes", "plan", "doctor")
_MAGICS = "|".join(sorted({"cluster", "stalls", "image", "help", *_OTHERS, *WORK_MAGICS}))
_NAMES = rf"transient_(?:{_MAGICS})|{'|'.join(WORK_MAGICS)}"
_LINE = re.compile(rf"(?:^|=)\s*%{{1,2}}(?P<magic>{_NAMES})\s+(?P<rest>.*)$", re.DOTALL)


@context_matcher(identifier="transient_magics")
def matcher(context: CompletionContext) -> SimpleMatcherResult:
    """Return the words that fit at the cursor, for IPython's completer."""
    match = _LINE.search(context.text_until_cursor)
    if not match:
        return {"completions": []}
    token = ""
    if match["rest"].endswith(context.token):
        token = context.token
    found = candidates(match["magic"], match["rest"].removesuffix(token), token)
    fitting = [word for word in found if word.startswith(token.lower())]
    return {
        "completions": [SimpleCompletion(text=word, type="transient") for word in fitting],
        "suppress": bool(fitting),
        "ordered": True,
        "matched_fragment": token,
    }


def candidates(magic: str, before: str, token: str) -> list[str]:
    """Return the words that may follow `before` in a line of a magic, in their order of display.

    Parameters
    ----------
    magic
        The name of the magic, without percent signs.
    before
        The text between the name and the word at the cursor.
    token
        The beginning of the word at the cursor.
    """
    words = before.split()
    if magic == "transient_help":
        return _commands(words)
    typed = magic.removeprefix("transient_")
    verb = options.aliases().get(typed, typed)
    if magic == "transient_cluster":
        verb = "declare"
        if words and words[0] in options.CLUSTER_VERBS:
            verb = words[0]
            words = words[1:]
    if magic == "transient_image":
        if not words or words[0] not in options.IMAGE_VERBS:
            if words:
                return []
            return list(options.IMAGE_VERBS)
        verb = f"image {words[0]}"
        words = words[1:]
    declared = options.declared(verb)
    if token.startswith("-"):
        used = set(words)
        return [
            flag
            for option in declared
            for flag in option.spellings
            if flag.startswith("--") and flag not in used
        ]
    if option := _awaiting(declared, words, before):
        return _values(option, words, before)
    found = []
    if position := _position(declared, words):
        found = _values(position, words, before)
    if verb == "declare" and not words and not before.rstrip().endswith(("+", "@")):
        found = [*arguments.verbs(), *found]
    return found


def _commands(words: list[str]) -> list[str]:
    """Return the commands with a help in a notebook, or the sub-commands of one."""
    if not words:
        terminal_only = ("emulator", *options.aliases().values())
        return [
            verb
            for verb in (*options.program_verbs(), *options.aliases())
            if verb not in terminal_only
        ]
    if words in (["cluster"], ["image"]):
        return list(arguments.verbs(words[0]))
    return []


def _awaiting(declared: Iterable[Option], words: list[str], before: str) -> Option | None:
    """Return the option whose value is at the cursor, or None."""
    last = ""
    if words:
        last = words[-1]
    if not before.endswith((" ", "=", ",")):
        return None
    flag = last.partition("=")[0]
    if "," in last and len(words) > 1 and words[-2].startswith("-"):
        flag = words[-2]
    if last.partition("=")[2] and not before.endswith((",", "=")):
        return None
    return next(
        (option for option in declared if flag in option.flags and option.takes_value), None
    )


def _position(declared: Iterable[Option], words: list[str]) -> Option | None:
    """Return the positional argument at the cursor, or None."""
    declared = list(declared)
    switches = {
        flag
        for option in declared
        if not option.takes_value or option.negated
        for flag in option.spellings
    }
    given = 0
    after_flag = False
    for word in words:
        if word.startswith("-"):
            after_flag = word not in switches and "=" not in word
        elif after_flag:
            after_flag = False
        else:
            given += 1
    positions = [option for option in declared if not option.flags[0].startswith("-")]
    if positions and positions[-1].many in ("*", "+"):
        return positions[min(given, len(positions) - 1)]
    if given < len(positions):
        return positions[given]
    return None


def _values(option: Option, words: list[str], before: str) -> list[str]:
    match option.completes:
        case "gpu":
            return _spec(before)
        case "zone":
            return list(ZONES)
        case "region":
            return sorted({region(zone) for zone in ZONES})
        case "cluster":
            return _clusters()
        case "worker":
            if words:
                return _workers(words[0])
            return []
        case "image":
            from ..client.project.images import build_names

            return build_names()
        case "workload":
            return [*_runs(), *option.choices]
        case "run":
            return _runs()
        case "work":
            if words:
                return _work(words[0])
            return []
    return list(option.choices)


def _spec(before: str) -> list[str]:
    piece = before.rpartition("+")[2]
    if piece.endswith("@"):
        gpu = re.sub(r"x\d+$", "", piece.split()[-1].removesuffix("@").lower())
        if gpu in ACCELERATORS:
            return list(zones_with(gpu))
        return list(ZONES)
    return list(ACCELERATORS)


def _runs() -> list[str]:
    return sorted({path.name for path in places.clusters().glob(f"[a-z]*/{layout.RUNS}/[a-z]*")})


def _clusters() -> list[str]:
    found = sorted(
        places.clusters().glob(f"[a-z]*/{layout.SPEC}"),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    return [path.parent.name for path in found]


def _work(cluster: str) -> list[str]:
    folders = [places.cluster(cluster) / kind.folder for kind in KINDS.values()]
    return sorted({path.name for folder in folders for path in folder.glob("[a-z]*")})


def _workers(cluster: str) -> list[str]:
    from ..journal import read, replay

    state = replay(read(places.cluster(cluster) / layout.JOURNAL))
    return [vm.name for vm in state.living]
