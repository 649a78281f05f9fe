"""Redaction of credentials in texts, overrides and nested values."""

import json
import logging
import os
import random
import shlex
import string
import time
from urllib.parse import quote_plus

import pytest

from epochmeter.config import secrets
from epochmeter.config.secrets import (
    CONCEALED,
    conceal,
    conceal_tree,
    looks_random,
    redact,
    redact_override,
    redact_tree,
    reveal,
    strip_credentials,
)

REDACTED = {
    "http://ann:hunter2@tracker:5000/x": "http://***@tracker:5000/x",
    "postgresql+psycopg://ann:hun@ter2@db/mlflow": "postgresql+psycopg://***@db/mlflow",
    "s3://hunter2@bucket and http://:hunter2@b": "s3://***@bucket and http://***@b",
    "http://ann:hunter/2@b/x": "http://***@b/x",
    "https://b/x?token=hunter2;hunter3&n=2#part": "https://b/x?token=***&n=2#part",
    "http://b/x?X-Amz-Signature=hunter2&part=3": "http://b/x?X-Amz-Signature=***&part=3",
    "+dataset.make={url:x,password:hunter2}": "+dataset.make={url:x,password:***}",
    "make:\n  password: hunter, 2\n  n: 1": "make:\n  password: ***\n  n: 1",
    "`dataset.password=hunter 2` is not valid\n  hint: x": "`dataset.password=***` is not valid\n  hint: x",
    "run 1: password=*** batch=16": "run 1: password=*** batch=16",
    "cannot start `t.py --api-key hunter2 x`": "cannot start `t.py --api-key *** x`",
    "t.py --password 'hunter 2' --lr 1": "t.py --password *** --lr 1",
    "401 for 'Authorization: Bearer hunter2'": "401 for 'Authorization: ***'",
    "sent bearer hunter2": "sent bearer ***",
    "basic aHVudGVyMjpodW50ZXIy failed": "basic *** failed",
    "invalid key ghp_hunter2hunter2hunter2.": "invalid key ***.",
    "cannot connect to ann:hunter2@db:5432/x": "cannot connect to ann:***@db:5432/x",
}
UNCHANGED = [
    "http://127.0.0.1:5000/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=energy-and-time",
    "optimizer.lr=tag(log, interval(0.001, 0.1)) model.pad_token=<pad> model.tokens=512 report.key=x",
    "sqlite:////home/ann@work/mlflow.db",
    "tracking.uri=http://[::1]:5000/a@b",
    "tracking.uri=http://host/?sort_key=a&max_tokens=3",
    "~dataset.make.password",
    "dataset.make.password=",
    "2026-11-21 10:20:30: batch: 8, unexpected token: x",
    "basic training of sk-learn at git commit 8f14e45fceea167a5a36dedd4bea2543aa01ccdd: set a bearer token",
    "hint: mail ann@host.org, or mailto:ann@host.org; or --use-token --lr 1",
    *(f"{key}=3" for key in ("bos_token", "PAD_token", "model.pad.token", "tokenizer", "monkey", "sort_key")),
]
KEYS = ["dataset.make.password", "PASSWD", "my.apiKey", "private_key", "HF_TOKEN"]
SECRETS = ["XYZZY 42X", "XY'ZZY", 'XY"ZZY', "XYZZY&ZYX", "XYZZY,ZYX", "XY}ZZY", "XY=ZZY==", "XY:ZY@X", "XY batch=42"]


def test_only_credentials_are_replaced():
    assert {text: redact(text) for text in REDACTED} == REDACTED
    assert [text for text in UNCHANGED if {redact(text), redact_override(text)} != {text}] == []
    assert strip_credentials("http://ann:hunter2@tracker:5000/#/x") == "http://tracker:5000/#/x"


def texts_with(key, secret):
    """All texts that may show a secret."""
    quoted = "'" + secret.replace("'", r"\'") + "'"
    for sign in ("", "+", "++"):
        for override in (f"{sign}{key}={secret}", f"{sign}{key}={quoted}"):
            yield redact_override(override)
            yield json.dumps(redact_tree({"points": [["batch=8", override]]}))
            yield redact(shlex.join(["python", "src/train.py", "batch=8", override]))
            yield redact(f"First:\n  no such key in {override!r}.\nGive another.")
    yield redact(f"+dataset.make={{url:x,{key}:{quoted},n: 1}}")
    yield redact(str({"url": "x", key: secret}))
    yield redact(json.dumps({key: [secret, 1]}))
    yield json.dumps(redact_tree({"make": {key: {"of": [secret]}, "n": 1}}))
    yield redact(f"no data at 'https://data.org/digits?n=3&{key}={quote_plus(secret)}&part=3': see https://b.org")
    yield redact(f"http://ann:{secret.replace(' ', '')}@tracker:5000/x")


def test_no_letter_of_a_secret_is_left_in_any_text():
    for key in KEYS:
        for secret in SECRETS:
            for text in texts_with(key, secret):
                assert not set("XYZ42") & set(text), (key, secret, text)
                assert "***" in text, (key, secret, text)
                assert redact(text) == text, (key, secret, text)


def test_values_of_secret_keys_in_a_tree_are_hidden_completely():
    tree = {"password": 12345, "pin": {"secret": 0}, "token": {"a": "b"}, "pad_token": "<pad>", "uri": ["http://a:b@c"]}
    hidden = {**tree, "password": "***", "pin": {"secret": "***"}, "token": "***", "uri": ["http://***@c"]}
    assert redact_tree(tree) == hidden
    empty = {"password": None, "token": False, "secret": ""}
    assert redact_tree(empty) == empty


def test_redaction_takes_linear_time():
    texts = ("a" * 100_000, "'\"x" * 30_000, " " * 100_000, "{a:" * 30_000, "http://h:x " * 9000, "{password:'" * 9000,
             "://a:b" * 30_000, "a@" + "://a:b" * 30_000, "--token " * 20_000, "eyJ" * 50_000, "bearer " * 20_000,
             "a:bcd@" * 30_000, "authorization " * 10_000, "-----BEGIN " * 10_000, "sk-" * 50_000)  # fmt: skip
    begin = time.process_time()
    for text in texts:
        redact(f"password={text}")
        redact(f"{text}=")
    assert time.process_time() - begin < 5


@pytest.fixture
def new_key(monkeypatch, tmp_path):
    """new_key(path) -> checksums of another user from now on, with the key in a file of this name, if there is one."""

    def change(name="state"):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / name))
        secrets._checksum_key.cache_clear()
        return tmp_path / name / secrets.KEY_FILE

    yield change
    secrets._checksum_key.cache_clear()


def test_masks_of_a_configuration_differ_by_secret_and_by_user_and_stay_the_same(new_key):
    path = new_key()
    first, second = conceal("hunter2"), conceal("hunter3")
    assert CONCEALED.fullmatch(first)
    assert first != second
    assert conceal(first) == first
    assert (reveal(first), reveal(f"a {second} b"), reveal("***01234567")) == ("hunter2", "a hunter3 b", "***01234567")
    assert (path.stat().st_mode & 0o777, path.stat().st_size) == (0o600, secrets.KEY_BYTES)
    assert os.listdir(path.parent) == [path.name]
    new_key("another")
    assert conceal("hunter2") != first
    new_key()
    assert conceal("hunter2") == first


def test_tree_of_a_configuration_has_masks_in_the_places_of_secrets(new_key):
    new_key()
    tree = {"password": 12345, "box": {"secret": [1]}, "uri": ["http://a:b@c", "x.token=a"], "text": "--pass-code b c"}
    concealed = conceal_tree(tree)
    assert reveal(concealed) == tree
    assert json.loads(CONCEALED.sub("***", json.dumps(concealed))) == redact_tree(tree)
    assert conceal_tree(concealed) == concealed


def make_public(path):
    path.write_bytes(b"k" * secrets.KEY_BYTES)
    path.chmod(0o644)


@pytest.mark.parametrize(
    "make",
    [make_public, os.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.touch(0o600)],
)
def test_without_a_secret_key_masks_are_those_of_one_process_with_a_warning(new_key, caplog, make):
    path = new_key()
    path.parent.mkdir(parents=True)
    make(path)
    with caplog.at_level(logging.WARNING):
        first = conceal("hunter2")
        assert conceal("hunter2") == first
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "a run with a secret in its command is measured again"
    ]
    new_key()
    assert conceal("hunter2") != first


def test_secret_of_an_environment_variable_is_hidden_wherever_it_is(monkeypatch):
    monkeypatch.setenv("OWN_API_KEY", "correct-horse-1")
    monkeypatch.setenv("OWN_PASSWORD", "postgres")  # a word, and found in other texts
    monkeypatch.setenv("PWD", "/usr/bin")  # a folder
    secrets._environment_secrets.cache_clear()
    try:
        assert redact("x correct-horse-1y postgres") == "x ***y postgres"
        assert redact("/usr/bin/python") == "/usr/bin/python"
        assert reveal(conceal_tree({"a": "correct-horse-1"})) == {"a": "correct-horse-1"}
    finally:
        secrets._environment_secrets.cache_clear()


def test_random_keys_are_recognized():
    generator = random.Random(0)
    for alphabet, length, least in (
        (string.ascii_letters + string.digits, 24, 0.85),
        (string.ascii_letters + string.digits, 40, 0.95),
        ("0123456789abcdef", 40, 0.99),
        (string.ascii_letters + string.digits + "-_", 43, 0.9),
    ):
        keys = ["".join(generator.choices(alphabet, k=length)) for _ in range(400)]
        assert sum(map(looks_random, keys)) >= least * len(keys)
