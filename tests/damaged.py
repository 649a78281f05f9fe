"""Random damage to the files of a record, as a crash, another version or another user may leave them."""

import copy
import json
import os

HOSTILE = "\x1b]0;x\x07\x9b2J\x00\ud800\u202e"
DEEP = "[" * 5000
VALUES = [
    None, [], {}, "x", "", -1, 0, 1e308, -1e308, float("inf"), float("nan"), True, 10**400, 2**63, [[{}]], {"a": [1]},
    HOSTILE,
]  # fmt: skip


def paths_of(value, path=()):
    """Yield the paths of all values within nested lists and objects."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*path, key)
        yield from paths_of(part, (*path, key))


def with_value(value, path, new):
    changed = parent = copy.deepcopy(value)
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = new
    return changed


def change_value(file, generator):
    """Replace one value of a document or of its first line."""
    first, *others = file.read_text().split("\n") if file.suffix == ".jsonl" else [file.read_text()]
    value = json.loads(first)
    changed = with_value(value, generator.choice([*paths_of(value)]), generator.choice(VALUES))
    file.write_text("\n".join([json.dumps(changed), *others]))


def damage_text(file, generator):
    content = file.read_bytes()
    place = generator.randrange(len(content))
    kinds = [
        content[:place], b"", content[:place] + b"\xff\xfe\x00" + content[place:], content.decode().encode("utf-16"),
        DEEP.encode(), b'{"job":' * 3000, content[:place] + b"\x1b[31m" + content[place:], b"\x00" * 100, b"[1, 2]\n",
        content.replace(b"1", b"1" * 5000, 1), content.replace(b'"', b"'"), b"\xef\xbb\xbf" + content,
    ]  # fmt: skip
    file.write_bytes(generator.choice(kinds))


def replace_file(file, generator):
    """Replace a file by a link, a pipe, a folder or a huge file, or remove it."""
    private = file.parents[2] / "private"
    kinds = [
        lambda: os.mkfifo(file), lambda: file.symlink_to(private), lambda: file.symlink_to("/dev/zero"),
        lambda: file.symlink_to(file.name), file.mkdir, lambda: None,
        lambda: os.truncate(os.open(file, os.O_CREAT | os.O_WRONLY), 2**42),
    ]  # fmt: skip
    file.unlink()
    generator.choice(kinds)()
