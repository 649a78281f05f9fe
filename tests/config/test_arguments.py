"""Secrets in the arguments of a command: which are concealed, and that the script gets them."""

import re
import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from epochmeter.commands.measure import concealed_arguments
from epochmeter.config.arguments import conceal_command, conceal_override, defer_keys, secret_placeholders, undefer_key
from epochmeter.config.secrets import CONCEALED, conceal, reveal
from epochmeter.shared.problem import InputError

HEX = "8f14e45fceea167a5a36dedd4bea2543aa01ccdd"
SECRET = """
--password=PW | --password PW | --api-key PW | --hf_token PW | -pPW | -p PW | --pass PW | --db-pw PW | --auth PW
--passwords PW PWb | --password -PW | -u ann:PW | --user ann:PW | WANDB_API_KEY=PW | trainer.token=PW | +a.secret=PW
'--header=Authorization: Bearer PW' | -H 'Authorization: Bearer PW' | --header Authorization: Bearer PW | --apiKey PW
--header Authorization: Basic aHVudGVyMjpodW50ZXIy | -H 'X-Api-Key: PW' | -H 'Cookie: id=PW' | 'Authorization=Bearer PW'
https://ann:PW@host/x | --url=http://PW@host | 'http://h/x?token=PW&n=1' | postgres://ann:PW@db:5432/x | ann:PW@h:/x
'{"password": "PW", "lr": 1}' | '--json={token: PW}' | sk-PWabcdefgh1234567890 | sk-proj-PW-abcdefgh1234567890
ghp_aB1aB1aB1aB1aB1aB1aB | github_pat_11ABCDEFG0123456789_abc | hf_aBcDeFgHiJkLmNoPqRsT | glpat-PWabcdefgh
AKIAIOSFODNN7EXAMPLE | AIzaSyA1234567890abcdefghijk | eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl | xoxb-123456-PW
--wandb 8f14e45fceea167a5a36dedd4bea2543aa01ccdd | --key q3J8fK2mZp7Lw9XvB4nT6rYc | npm_aB1aB1aB1aB1aB1aB1aB
--x=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY | https://hooks.slack.com/services/T0/B0/PWx
'-----BEGIN RSA PRIVATE KEY-----PW'
"""
"""Arguments with a secret each; PW is a password."""
PLAIN = f"""
--lr 0.1 | -p 8080 | -p0.5 | -p data/x | -p {{script.p}} | --pad_token x | --max_token 5 | --tokenizer gpt2 | --monkey b
--n-pass 3 | --forward_pass=2 | --sort_key a | --use-auth-token true | --hub_token --lr 1 | --token {{script.t}}
--use_token | --revision {HEX} | --commit={HEX} | --run-id {HEX} | --name exp_20240101_b256_lr0001_wd00005
--model DeepLabV3PlusResNet101OS16 | --model tf_efficientnetv2_xl_in21ft1k | --config /a/{HEX}.yaml
/mnt/Data01/ImageNet21k/Train256x256/Part3 | 123e4567-e89b-12d3-a456-426614174000 | --author ann | --url http://host:80/x
basic resnet | ann@host.org | --port=5432 | 2026-11-20_12-00-00-1a2b3c4d | vit_base_patch16_224.augreg_in21k_ft_in1k
--time 10:20:30 | --shape 3x224x224 | --nproc-per-node=2 | cosineannealingwarmrestarts0 | 0123456789012345678901234567
"""


def arguments(text):
    return [shlex.split(part.strip()) for line in text.strip().splitlines() for part in re.split(r" \| ", line)]


def test_secrets_are_concealed_by_option_place_or_form_and_revealed_to_the_script():
    for words in arguments(SECRET.replace("PW", "hunter2")):
        command = ["t.py", *words]
        concealed = conceal_command(command)
        assert CONCEALED.search(" ".join(concealed)), command
        assert "hunter2" not in " ".join(concealed)
        assert reveal(concealed) == command
        assert conceal_command(concealed) == concealed


def test_other_arguments_are_recorded_as_they_are():
    assert [words for words in arguments(PLAIN) if conceal_command(["t.py", *words]) != ["t.py", *words]] == []
    assert conceal_command(["-m", "password", "secret"]) == ["-m", "password", "secret"]


def test_placeholder_is_secret_by_its_use():
    command = [
        *("t.py", "--api-key", "{script.a}", "--lr={script.lr}", "--url", "http://u:{script.b}@h", "-p", "{script.p}"),
        *("--token={script.c}x", "-H", "Authorization: Bearer {script.d}", "ann:{script.e}@host"),
    ]
    assert secret_placeholders(command) == {*"abcde"}


def values(override):
    """Return the values that Hydra reads from an override, with its secrets."""
    parsed = OverridesParser.create().parse_override(override)
    swept = parsed._value.list if parsed.is_sweep_override() else [parsed.value()]
    return reveal([getattr(value, "text", value) for value in swept])


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("script.password=hunter2,b", ["hunter2", "b"]),
        ("script.k=hunter2,'x y',3", ["hunter2", "x y", 3]),
        ("script.password=choice('hunter2',b)", ["hunter2", "b"]),
        ("+dataset.login={name:ann,hf_token:hunter2}", [{"name": "ann", "hf_token": "hunter2"}]),
        ("+dataset.password='hunter2 \\'x'", ["hunter2 'x"]),
        ("+x=http://ann:hunter2@h/y", ["http://ann:hunter2@h/y"]),
        ("a={x:${oc.env:HOME},password:hunter2}", [{"x": "${oc.env:HOME}", "password": "hunter2"}]),
        ("+dataset.token=12345", [12345]),
        ("+keys=[sk-hunter2abcdefgh1234,b]", ["sk-hunter2abcdefgh1234", "b"]),
    ],
)
def test_each_secret_of_an_override_is_concealed_and_revealed_as_hydra_reads_it(typed, expected):
    concealed = conceal_override(typed, {"script.k"})
    assert "hunter2" not in concealed
    assert "12345" not in concealed
    assert conceal_override(concealed, {"script.k"}) == concealed
    read = values(concealed)
    assert read == expected or read == [expected]


OTHERS = [
    *("batch=8,16", "optimizer.lr=tag(log,interval(0.001,0.1))", "note='a b'", "script.password=${oc.env:PW}"),
    *("~dataset.password", "dataset.password=", "script.password=null", "tracking.uri=http://h:5000"),
]


def test_other_overrides_stay_and_an_invalid_or_unlisted_one_shows_no_secret():
    for typed in OTHERS:
        assert conceal_override(typed) == typed
    assert conceal_override("script.password=(hunter2") == "script.password=***"
    with pytest.raises(InputError, match=r"^`script\.password=` has the values of a secret"):
        conceal_override("script.password=range(1,5)")


def test_hidden_arguments_leave_the_program_and_the_module():
    overrides, command = ["measure.hide_arguments=true", "script.lr=0.1,0.2", "repeat=1"], ["--lr={script.lr}", "x"]
    for program in (["t.py"], ["-m", "package.train"], ["torchrun"]):
        concealed, hidden = concealed_arguments(overrides, [*program, *command])
        assert hidden == [*program, *map(conceal, command)]
        assert reveal(hidden) == [*program, *command]
        assert concealed == [overrides[0], f"script.lr={conceal(0.1)},{conceal(0.2)}", "repeat=1"]
    assert concealed_arguments(["measure.hide_arguments=false"], ["t.py", "x"])[1] == ["t.py", "x"]
    for words in ((["script.lr=***0123abcd"], ["t.py"]), ([], ["t.py", "--key=***0123abcd"])):
        with pytest.raises(InputError, match="is the mask of a secret in a record"):
            concealed_arguments(*words)


def test_values_of_a_training_configuration_are_concealed_by_key_and_url_only():
    """The training process reads them from the record: no other text may change."""
    for override in (f"dataset.sha={HEX}", "+dataset.text='the bearer of a token'", f"+model.weights={HEX}"):
        assert conceal_override(override) == override
    assert "hunter2" not in conceal_override("dataset.url=http://ann:hunter2@host/x")


def test_keys_of_a_swept_group_are_deferred_and_recorded_as_typed():
    groups = ("dataset", "scheduler")
    typed = ["-m", "dataset=a,b", "dataset.count=64", "scheduler.x={k: [1,2]}", "scheduler.y='a,b'", "scheduler.z=",
             "dataset.size=1,2", "+dataset.new=1", "batch=8", "sweep.seed=1", "scheduler.bad=("]  # fmt: skip
    deferred = defer_keys(typed, groups)
    changed = [new for new, old in zip(deferred, typed, strict=True) if new != old]
    assert changed == ["dataset.count=choice(64)", "scheduler.x=choice({k: [1,2]})", "scheduler.y=choice('a,b')"]
    assert [undefer_key(argument) for argument in deferred] == typed
    parser = OverridesParser.create()
    for new, value in zip(changed, (64, {"k": [1, 2]}, "a,b"), strict=True):
        (text,) = parser.parse_override(new).sweep_string_iterator()
        assert parser.parse_override(f"key={text}").value() == value
    for unchanged in (["-m", "dataset=a", "dataset.count=64"], ["-m", "batch=8,16", "dataset.count=64"]):
        assert defer_keys(unchanged, groups) == unchanged
    assert undefer_key("batch=choice(8,16)") == "batch=choice(8,16)"
