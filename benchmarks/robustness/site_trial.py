"""A sweep as a large site would run it: PostgreSQL, an object store, an MLflow server and two Slurm nodes, all here.

    pip install 'moto[server]' boto3
    PYTHONPATH=src:tests:benchmarks python benchmarks/robustness/site_trial.py [RUNS [PUBLISHED]]

RUNS runs whose training process trains nothing are submitted to Slurm, and published when they have ended; the records
are on a file system that the nodes share. Then their records are published PUBLISHED times more, as those of other
runs. It needs root, Slurm, PostgreSQL, and moto's server, which stands for an object store such as S3.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import psutil
import psycopg
import servers
import slurm
import stub
from common.output import ARGUMENTS, print_table, sized
from project import free_ports, wait_until

from epochmeter.config.installation import ROOT
from epochmeter.shared.atomic_files import read_json, write_json
from epochmeter.shared.record import JOB_FILE, Record
from epochmeter.tracking.client import open_store
from epochmeter.tracking.publish import publish

RUNS = int(ARGUMENTS[0]) if ARGUMENTS else sized(20, 2)
PUBLISHED = int(ARGUMENTS[1]) if ARGUMENTS[1:] else sized(200, 4)
NODES = {"node1": "", "node2": ""}
EXPERIMENT, BUCKET = "site", "epochmeter"
LIMIT_S = 120


@contextmanager
def object_store() -> Iterator[str]:
    """Start an object store with an empty bucket, known to this process and its children; yield its address."""
    import boto3

    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    os.environ |= {
        "MLFLOW_S3_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "trial",
        "AWS_SECRET_ACCESS_KEY": "trial",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: servers.answers(f"{address}/moto-api/"), LIMIT_S, pause_s=0.2)
        boto3.client("s3", endpoint_url=address).create_bucket(Bucket=BUCKET)
        yield address
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def submit(root: Path, address: str, environment: dict[str, str]) -> Path:
    """Run a sweep on the nodes, and return its folder."""
    for part in ("src", "conf"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "multirun").mkdir()
    locks = f"machine.lock_dir={root}/locks-${{oc.env:SLURMD_NODENAME,none}}"
    keys = [f"{key}={value}" for key, value in stub.JOB.items()]
    keys += ["device=cpu", f"device.python={stub.program(root)}", f"seed=range({RUNS})", locks]
    keys += ["tracking=server", f"tracking.uri={address}", f"tracking.experiment={EXPERIMENT}"]
    launcher = ["hydra/launcher=slurm", "hydra.launcher.poll_s=1"]
    path = os.pathsep.join([str(root / "src"), *map(str, (ROOT / "tests", ROOT / "benchmarks"))])
    command = [sys.executable, "src/train.py", "-m", *launcher, *keys]
    subprocess.run(command, cwd=root, env={**environment, "PYTHONPATH": path}, check=True, stdout=sys.stderr)
    (sweep,) = (root / "multirun").glob("2*")
    return sweep


def copies(sweep: Path, target: Path) -> Iterator[Record]:
    """Yield copies of the records of a sweep, as those of other runs, again and again."""
    for number in count():
        folder = target / str(number)
        shutil.copytree(sweep / str(number % RUNS), folder)
        described = read_json(folder / JOB_FILE)
        described["run"] |= {"record_id": f"copy-{number}", "number": number, "sweep_id": target.name}
        write_json(folder / JOB_FILE, described)
        yield Record(folder)


def processor_s(word: str) -> float:
    """Return the processor time of the processes whose command has this word, and of their children."""
    found = [process for process in psutil.process_iter(["cmdline"]) if word in " ".join(process.info["cmdline"] or ())]
    own = {member for process in found for member in (process, *process.children(recursive=True))}
    times = [process.cpu_times() for process in own]
    return sum(used.user + used.system + used.children_user + used.children_system for used in times)


def stored(address: str, database: str) -> tuple[int, int, int]:
    """Return the bytes of the database, the number of objects and their bytes."""
    import boto3

    with psycopg.connect(database.replace("+psycopg", "")) as connection:
        (size,) = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    client = boto3.client("s3", endpoint_url=address)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    sizes = [item["Size"] for page in pages for item in page.get("Contents", ())]
    return size, len(sizes), sum(sizes)


def main() -> None:
    if not slurm.is_available() or not servers.postgresql():
        sys.exit(f"site_trial.py {slurm.REQUIREMENTS}; and {servers.REQUIREMENTS}")
    with tempfile.TemporaryDirectory(prefix="epochmeter-site-") as made:
        root = Path(made)
        for name in ("server", "slurm", "project"):
            (root / name).mkdir()
        with (
            object_store() as objects,
            servers.database() as database,
            servers.mlflow(root / "server", database, f"s3://{BUCKET}") as address,
        ):
            with slurm.running(root / "slurm", NODES) as cluster:
                begun_s = time.monotonic()
                sweep = submit(root / "project", address, cluster.environment)
                sweep_s = time.monotonic() - begun_s
            store = open_store(EXPERIMENT, address, 60)
            found = store.client.search_runs([store.experiment_id], "attributes.status = 'FINISHED'", max_results=RUNS)
            assert len(found) == RUNS, f"{len(found)} of {RUNS} runs are published"
            before, before_s = stored(objects, database), used_s(address, objects)
            seconds = []
            for record in islice(copies(sweep, root / "project/multirun/2026-01-01_00-00-00-10000000"), PUBLISHED):
                begun_s = time.perf_counter()
                publish(record, store)
                seconds.append(time.perf_counter() - begun_s)
            after, after_s = stored(objects, database), used_s(address, objects)
            record_bytes = sum(path.stat().st_size for path in (sweep / "0").iterdir())
    per_run = [(late - early) / PUBLISHED for early, late in zip(before, after, strict=True)]
    server_s, database_s, objects_s, own_s = (
        (late - early) / PUBLISHED for early, late in zip(before_s, after_s, strict=True)
    )
    rows = [
        ["time of the sweep on two nodes", f"{sweep_s / RUNS:.2f} s"],
        [
            "time of a publication: median, of the first ten, of the last ten",
            ", ".join(f"{median(part):.3f} s" for part in (seconds, seconds[:10], seconds[-10:])),
        ],
        ["processor time of a publication: publishing process", f"{own_s:.3f} s"],
        ["processor time of a publication: MLflow server", f"{server_s:.3f} s"],
        ["processor time of a publication: PostgreSQL", f"{database_s:.3f} s"],
        ["processor time of a publication: object store", f"{objects_s:.3f} s"],
        ["record", f"{record_bytes / 1e3:.0f} kB"],
        ["database", f"{per_run[0] / 1e3:.0f} kB"],
        ["objects", f"{per_run[1]:.0f}, {per_run[2] / 1e3:.0f} kB"],
    ]
    title = "Costs per run of a sweep with Slurm, an MLflow server, PostgreSQL and an object store"
    print_table(title, ("per run", f"{RUNS} runs, {PUBLISHED} more published"), rows)


def used_s(address: str, objects: str) -> tuple[float, float, float, float]:
    """Return the processor times of MLflow's server, PostgreSQL, the object store and this process."""
    server, store = (str(urlsplit(url).port) for url in (address, objects))
    commands = f"--port {server}", "epochmeter-postgresql-", f"moto.server -H 127.0.0.1 -p {store}"
    return (*map(processor_s, commands), time.process_time())


if __name__ == "__main__":
    main()
