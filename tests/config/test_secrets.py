"""Redaction of credentials in texts, overrides and nested values."""

import json
import shlex
import time
from urllib.parse import quote_plus

from epochmeter.config.secrets import redact, redact_override, redact_tree, strip_credentials

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
             "://a:b" * 30_000, "a@" + "://a:b" * 30_000)  # fmt: skip
    begin = time.process_time()
    for text in texts:
        redact(f"password={text}")
        redact(f"{text}=")
    assert time.process_time() - begin < 5
