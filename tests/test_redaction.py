"""Secrets that an address or a key can hold are hidden, and nothing else is."""

import pytest

from trainmeter.redaction import redacted, redacted_tree, without_user


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
    assert redacted(text) == shown
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
    assert redacted(text) == text


def test_in_a_tree_what_is_named_as_a_secret_is_hidden_whole():
    tree = {
        "make": {"password": "hunter2", "token": "hunter2", "pad_token": "<pad>", "auth_token": None},
        "n": [1, "a"],
    }
    hidden = {"make": {"password": "***", "token": "***", "pad_token": "<pad>", "auth_token": None}, "n": [1, "a"]}
    assert redacted_tree(tree) == hidden
    assert redacted_tree({"uri": ["http://a:b@c"]}) == {"uri": ["http://***@c"]}


def test_a_link_goes_where_the_address_did():
    assert without_user("http://ann:hunter2@tracker:5000/#/x") == "http://tracker:5000/#/x"
