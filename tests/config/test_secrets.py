"""Secrets that an address or a key can hold are hidden, and nothing else is."""

import json
import shlex
from urllib.parse import quote_plus

import pytest

from epochmeter.config.secrets import redact, redact_override, redact_tree, strip_credentials


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://ann:hunter2@tracker:5000/x", "http://***@tracker:5000/x"),
        ("HTTPS://ann:hunter2@tracker", "HTTPS://***@tracker"),
        ("postgresql+psycopg://ann:hun@ter2@db/mlflow", "postgresql+psycopg://***@db/mlflow"),
        ("s3://hunter2@bucket and http://:hunter2@b", "s3://***@bucket and http://***@b"),
        ("https://data.org/a.zip?user=ann&token=hunter2", "https://data.org/a.zip?user=ann&token=***"),
        ("http://b/x?X-Amz-Signature=hunter2&part=3", "http://b/x?X-Amz-Signature=***&part=3"),
        ("https://b/x?sig=hunter2", "https://b/x?sig=***"),
        ("train.py 'dataset.make.password=hunter2' batch=8", "train.py 'dataset.make.password=***' batch=8"),
        ("+my.api_key=hunter2 HF_AUTH_TOKEN=hunter2", "+my.api_key=*** HF_AUTH_TOKEN=***"),
    ],
)  # fmt: skip
def test_who_logs_in_and_what_is_a_secret_by_its_name_is_hidden(text, shown):
    assert redact(text) == shown
    assert "hunter2" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:5000/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=energy-and-time",
        "optimizer.lr=0.01 model.pad_token=<pad> model.tokens=512 report.key=x",
        "ann@example.org has 3 images",
        "sqlite:////home/ann@work/mlflow.db",
        "batch=8 is above 4: user@host",
    ],
)
def test_what_is_no_secret_stands(text):
    assert redact(text) == text


def test_in_a_tree_what_is_named_as_a_secret_is_hidden_whole():
    tree = {
        "make": {"password": "hunter2", "token": "hunter2", "pad_token": "<pad>", "auth_token": None},
        "n": [1, "a"],
    }
    hidden = {"make": {"password": "***", "token": "***", "pad_token": "<pad>", "auth_token": None}, "n": [1, "a"]}
    assert redact_tree(tree) == hidden
    assert redact_tree({"uri": ["http://a:b@c"]}) == {"uri": ["http://***@c"]}


def test_a_link_goes_where_the_address_did():
    assert strip_credentials("http://ann:hunter2@tracker:5000/#/x") == "http://tracker:5000/#/x"


KEYS = [
    *("password", "dataset.make.password", "db_password", "PASSWD", "passphrase", "client-secret", "api_key"),
    *("my.apiKey", "private_key", "secret_key", "accessKey", "token", "hf_token", "HF_TOKEN", "make.token"),
]  # fmt: skip
SECRETS = [
    "XYZZY",
    "XYZZY 42X",
    "XY'ZZY",
    'XY"ZZY',
    "XYZZY&ZYX",
    "XYZZY;ZYX",
    "XYZZY,ZYX",
    "XY}ZZY",
    "XY=ZZY==",
    "XY?Z#Y",
    "XY:ZY@X",
]


def quoted(secret):
    """A secret as Hydra takes it in quotes."""
    return "'" + secret.replace("'", r"\'") + "'"


def overrides(key, secret):
    """A secret, as it may be typed for a key, with quotes and without."""
    for value in (secret, quoted(secret)):
        yield from (f"{sign}{key}={value}" for sign in ("", "+", "++", "~"))
    yield from (f"+dataset.make={{url:x,{key}:{quoted(secret)},n: 1}}", f"make={{{key}: {quoted(secret)}}}")


def places(key, secret):
    """What is shown of a secret, by all that may be shown of a run."""
    for override in overrides(key, secret):
        yield redact_override(override)
        yield redact_tree({"points": [["batch=8", override]]})
        yield redact(shlex.join(["python", "src/train.py", "-m", "batch=8,16", override, "model=lenet"]))
        yield redact(f"Again, with {shlex.join([override])} this time.")
        yield redact(f"First of all:\n  no such key in {override!r}.\nGive another.")
    yield redact(f"batch=8 {key}={quoted(secret)} model=lenet digits")
    yield redact(str({"url": "x", key: secret}))
    yield redact(json.dumps({key: [secret, {"of": secret}]}))
    yield redact_tree({"make": {key: secret, "n": 1}})
    yield redact_tree({key: [secret, {"of": secret}]})
    yield redact(f"no data at 'https://data.org/digits?n=3&{key}={quote_plus(secret)}&part=3': see https://b.org")
    yield redact(f"http://ann:{secret}@tracker:5000/x")


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("key", KEYS)
def test_no_letter_of_a_secret_is_shown_wherever_it_stands(key, secret):
    shown = [each if isinstance(each, str) else json.dumps(each) for each in places(key, secret)]
    assert [each for each in shown if set("XYZ42") & set(each)] == []
    assert [each for each in shown if "***" not in each] == []
    assert [redact(each) for each in shown] == shown


@pytest.mark.parametrize("secret", [each for each in SECRETS if not {"'", '"'} & set(each)])
def test_an_override_typed_without_quotes_is_hidden_up_to_the_next(secret):
    assert redact(f"password={secret}") == "password=***"
    assert redact(f"batch=8 password={secret} model=lenet\nbatch=4") == "batch=8 password=*** model=lenet\nbatch=4"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("+dataset.make={url:x,password:hunter2}", "+dataset.make={url:x,password:***}"),
        ("make={password: {a: [hunter2, 1]}, n: 1}", "make={password: ***, n: 1}"),
        ("python t.py 'make.password=hunter 2' -m 'lr=1,2'", "python t.py 'make.password=***' -m 'lr=1,2'"),
        ("see 'make.password=hunter 2', which is none", "see 'make.password=***', which is none"),
        ("password=hunter2,hunter3 batch=8", "password=*** batch=8"),
        ("https://b/x?token=hunter2;hunter3&n=2#part", "https://b/x?token=***&n=2#part"),
        ("http://ann:hunter/2@b/x", "http://***@b/x"),
        ("make:\n  password: hunter, 2\n  n: 1", "make:\n  password: ***\n  n: 1"),
    ],
)  # fmt: skip
def test_what_stands_around_a_secret_is_left(text, shown):
    assert redact(text) == shown


def test_a_secret_need_be_no_text():
    asked = {"password": 12345, "pin": {"secret": 0}, "api_key": [1, {"of": 2}], "token": {"a": "b"}, "n": 12345}
    shown = {"password": "***", "pin": {"secret": "***"}, "api_key": "***", "token": "***", "n": 12345}
    assert redact_tree(asked) == shown
    none = {"password": None, "token": False, "secret": ""}
    assert redact_tree(none) == none


@pytest.mark.parametrize(
    "override",
    [
        "batch=8,16",
        "optimizer.lr=tag(log, interval(0.001, 0.1))",
        "dataset.root=/data/a b",
        "where={model: lenet, batch: [8, 16]}",
        "tracking.uri=http://host:5000",
        "tracking.uri=http://[::1]:5000/a@b",
        "~dataset.make.password",
        "dataset.make.password=",
        "+a={b: 'it, is', c: \"x=y\"}",
        *(f"{word}_token=3" for word in ("pad", "bos", "eos", "unk", "mask", "sep", "cls", "PAD")),
        *(f"{key}=3" for key in ("model.pad.token", "tokenizer", "max_tokens", "tokens", "key", "monkey", "sort_key")),
        "tracking.uri=http://host/?sort_key=a&max_tokens=3",
        "2026-11-21 10:20:30: batch: 8",
    ],
)
def test_an_ordinary_override_comes_out_as_it_was_typed(override):
    command = shlex.join(["python", "src/train.py", "-m", override, "a=b c"])
    assert redact(override) == redact_override(override) == override
    assert redact(command) == command
    assert redact_tree({"points": [[override]], "said": override}) == {"points": [[override]], "said": override}


@pytest.mark.parametrize(
    "text", ["", "'password=", "{password:", "a='", "python 'x password=a", "\\", "://:@", "\ud800=@:", "?token=='"]
)
def test_a_text_that_is_cut_short_is_no_error(text):
    assert redact(redact(text)) == redact(text)


def test_a_long_text_is_read_once():
    """A pattern that tries each beginning anew would take hours."""
    for text in ("a" * 100_000, "'\"x" * 30_000, " " * 100_000, "+" * 100_000, "{a:" * 30_000, "http://h:x " * 9000):
        redact(f"password={text}")
        redact(f"{text}=")
