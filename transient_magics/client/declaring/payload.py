"""What goes along with new work: its code, the files of `--include`, and packages of `--pip`."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ...errors import DeclarationError
from ...protocol import layout
from ..cell import as_declared, files_of, listed, packages
from .including import copy


@dataclass(frozen=True)
class Payload:
    """Code, files and packages of new work, which its folder gets.

    Attributes
    ----------
    source : str
        The Python code; empty where there is none.
    include : tuple of str
        Files and folders of this machine.
    pip : tuple of str
        Packages as the declaration names them.
    files : Mapping[str, Path]
        Files of this machine with packages, by the names that they get in the folder.
    """

    source: str = ""
    include: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict[str, Path])

    @classmethod
    def of(
        cls,
        source: str,
        include: str | Iterable[str] = (),
        pip: str | Iterable[str] = (),
        *,
        build: bool = False,
    ) -> Self:
        """Check what the options `--include`, `--pip` and `--pip-build` name. Raises
        DeclarationError.
        """
        paths = listed(include)
        for path in paths:
            if not Path(path).expanduser().exists():
                raise DeclarationError(f"There is no {path}", where="--include")
        named = packages(pip, build=build)
        files = files_of(named)
        return cls(source, paths, as_declared(named, files), files)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a declaration that name the files and packages."""
        return {"include": tuple(Path(path).name for path in self.include), "pip": self.pip}

    def fill(self, folder: Path) -> None:
        """Write all of it into the folder of new work.

        Raises OSError, or DeclarationError where the files to include cannot be copied.
        """
        (folder / layout.INCLUDE).mkdir(mode=0o700)
        (folder / layout.CELL).write_text(self.source, encoding="utf-8")
        copy(self.include, folder / layout.INCLUDE)
        (folder / layout.PIP).mkdir(mode=0o700)
        for name, path in self.files.items():
            shutil.copyfile(path, folder / layout.PIP / name)
