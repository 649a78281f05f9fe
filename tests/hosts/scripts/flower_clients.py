"""Federated learning by Flower: a server, and two clients in processes or in threads, each with a `Meter` of its own.

    flower_clients.py processes PORT KEY...

The clients train on 4 and 8 batches in each round, and print the number of steps that their `Meter` has measured.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import torch
from flwr.client import NumPyClient, start_client
from flwr.server import ServerConfig, start_server
from flwr.server.strategy import FedAvg
from torch.utils.data import DataLoader, TensorDataset

from epochmeter import Meter

ROUNDS, CLIENTS = 3, 2


class Client(NumPyClient):
    def __init__(self, number, keys):
        torch.manual_seed(number)
        inputs = torch.randn(32 * (number + 1), 4)
        self.number, self.loader = number, DataLoader(TensorDataset(inputs, inputs.sum(1)), 8)
        self.model = torch.nn.Linear(4, 1)
        self.meter = Meter(*keys, "measure.lock=false", f"script.client={number}")

    def get_parameters(self, config):
        return [parameter.detach().numpy() for parameter in self.model.parameters()]

    def fit(self, parameters, config):
        with torch.no_grad():
            for own, given in zip(self.model.parameters(), parameters):
                own.copy_(torch.tensor(given))
        optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        for inputs, targets in self.meter.batches(self.loader):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(self.model(inputs)[:, 0], targets).backward()
            optimizer.step()
        print(self.number, int(self.meter.last.metrics["steps"]), flush=True)
        return self.get_parameters({}), len(self.loader.dataset), {}


def run_client(number, address, keys):
    client = Client(number, keys)
    host, _, port = address.partition(":")
    while True:  # until the server listens: a client ends if it is refused
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection((host, int(port))).close()
            break
        time.sleep(0.1)
    start_client(server_address=address, client=client.to_client())
    client.meter.close()


if __name__ == "__main__":
    kind, port, *keys = sys.argv[1:]
    address = f"127.0.0.1:{port}"
    if kind.isdecimal():
        run_client(int(kind), address, keys)
        sys.exit()
    if kind == "processes":
        started = [subprocess.Popen([sys.executable, __file__, str(n), port, *keys]) for n in range(CLIENTS)]
    else:
        started = [threading.Thread(target=run_client, args=[n, address, keys]) for n in range(CLIENTS)]
        for thread in started:
            thread.start()
    all_clients = FedAvg(min_fit_clients=CLIENTS, min_available_clients=CLIENTS, fraction_evaluate=0.0)
    start_server(server_address=address, config=ServerConfig(num_rounds=ROUNDS), strategy=all_clients)
    for client in started:
        client.join() if kind == "threads" else client.wait()
