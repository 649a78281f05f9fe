"""Sentence pairs for translation from published parallel texts: two files per split, one sentence per line.

The files are downloaded by name, or are in a folder of the user: as they are, or in a tar archive. They are used as
published, with their words (or subwords) separated by spaces.
"""

import io
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice, zip_longest
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from epochmeter.config.installation import ROOT
from epochmeter.datasets.fetch import fetch, verify
from epochmeter.datasets.manifest import Facts
from epochmeter.datasets.progress import Notify, Progress
from epochmeter.shared.problem import InputError, input_error

SPLITS = ("train", "val")
FileNames = Mapping[str, Sequence[str]]
"""Split -> the names of its source and its target, or their checksums."""


def make(
    folder: Path,
    archives: str | None,
    archive: str,
    url: str | None,
    files: FileNames,
    sha256: FileNames | None,
    train_pairs: int | None,
    say: Notify,
) -> Facts:
    """Write train.tsv and val.tsv from parallel texts.

    Args:
        folder: Empty folder to fill.
        archives: The user's folder with the files, or with `archive`; None: they are downloaded from `url`.
        archive: Name of a tar archive of the files, which may be in a folder there.
        url: Folder of the files; None: they cannot be downloaded without a person.
        files: Names of the files.
        sha256: Their checksums; None: not verified.
        train_pairs: Only so many pairs for training; None: all.
        say: Receives messages.

    Raises:
        InputError: A file is missing, damaged or another one, or the two files of a split do not match.
    """
    splits = {}
    for split in SPLITS:
        with ExitStack() as opened:
            texts = []
            for side, name in enumerate(files[split]):
                checksum = sha256[split][side] if sha256 else None
                text = _open_text(folder, name, archives, archive, url, checksum, say)
                texts.append((name, opened.enter_context(text)))
            limit = train_pairs if split == "train" else None
            splits[split] = _write_pairs(folder / f"{split}.tsv", texts, limit, say)
    return {"splits": splits, "source": url or archive}


@contextmanager
def _open_text(
    folder: Path, name: str, archives: str | None, archive: str, url: str | None, sha256: str | None, say: Notify
) -> Iterator[BinaryIO]:
    """Open a file, which is downloaded, in a folder, or in an archive in that folder."""
    if archives is None:
        if url is None:
            hint = f"download {archive} into a folder, and set `dataset.archives=` to it: docs/storage.md"
            raise input_error("the dataset cannot be downloaded without a person", hint, key="dataset.archives")
        path = folder.parent / name
        fetch(f"{url.rstrip('/')}/{name}", path, sha256, say, key="sha256")
        with open(path, "rb") as file:
            yield file
        return
    top = ROOT / Path(archives).expanduser()
    if (top / name).is_file():
        verify(top / name, sha256, "replace it", "sha256")
        with open(top / name, "rb") as file:
            yield file
    elif (top / archive).is_file():
        path = _unpacked(top / archive, name, folder)
        verify(path, sha256, f"replace {top / archive}", "sha256")
        with open(path, "rb") as file:
            path.unlink()  # it is read once
            yield file
    else:
        raise input_error(
            f"{top} has neither {name} nor {archive}",
            f"set `dataset.archives=` to the folder of {archive}, or of its files",
            key="dataset.archives",
            file=str(top),
        )


def _unpacked(archive: Path, name: str, folder: Path) -> Path:
    """Unpack a file of an archive, whichever folder it has there; InputError if it is not there once."""
    path = folder / f".{name}"
    try:
        with tarfile.open(archive) as tar:
            members = [member for member in tar if member.isfile() and PurePosixPath(member.name).name == name]
            if len(members) != 1:
                raise _not_the_archive(archive, f"it has {name} {len(members)} times")
            source = tar.extractfile(members[0])
            with open(path, "wb") as file:
                while source and (chunk := source.read(io.DEFAULT_BUFFER_SIZE * 128)):
                    file.write(chunk)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise _not_the_archive(archive, str(error)) from error
    except OSError as error:
        if error.errno is not None:  # not gzip's error
            raise
        raise _not_the_archive(archive, str(error)) from error
    return path


def _not_the_archive(archive: Path, problem: str) -> InputError:
    reason = problem.partition(":\n")[0]  # tarfile lists the compressions that it has tried
    return input_error(f"{archive} is incomplete or another archive: {reason}", "download it again", file=str(archive))


def _write_pairs(path: Path, texts: Sequence[tuple[str, BinaryIO]], limit: int | None, say: Notify) -> int:
    """Write the pairs of lines of which neither is empty; return their number."""
    (name, sources), (other, targets) = texts
    progress = Progress(f"writing {path.name}", say, limit, "pairs")
    count = skipped = 0
    with open(path, "w", encoding="utf-8") as file:
        for number, lines in enumerate(islice(zip_longest(sources, targets), limit), 1):
            if None in lines:
                shorter = name if lines[0] is None else other
                raise input_error(
                    f"{name} and {other} do not match: {shorter} ends before line {number}",
                    "one of them is incomplete or of another version: download both again",
                )
            source, target = (_words(line, text, number) for line, text in zip(lines, (name, other), strict=True))
            if source and target:
                file.write(f"{source}\t{target}\n")
                count += 1
            else:
                skipped += 1
            progress.update(number)
    if not count:
        raise input_error(f"{name} and {other} have no pairs", "they are empty: download both again")
    if skipped:
        say(f"{skipped} pairs of {name} and {other} with an empty sentence are left out")
    return count


def _words(line: bytes, name: str, number: int) -> str:
    """Return the words of a line, separated by one space; InputError if it is not UTF-8."""
    try:
        return " ".join(line.decode("utf-8").split())
    except UnicodeDecodeError as error:
        raise input_error(f"{name}, line {number} is not UTF-8: {error}", "give the file as published") from error
