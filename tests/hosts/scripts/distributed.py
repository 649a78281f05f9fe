"""Two ranks with DistributedDataParallel or fully sharded, started by torchrun, or by themselves (`spawn`)."""

import os
import socket
import sys

import torch
from torch import distributed
from torch.utils.data import DataLoader, DistributedSampler
from truth import Data, Truth, digest, small_model, train_on

kind = sys.argv[1]


def main(rank, ranks):
    distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    truth = Truth()
    model, optimizer = small_model()
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        mesh = distributed.device_mesh.init_device_mesh("cpu", (ranks,))
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        whole = model
    else:
        whole = torch.nn.parallel.DistributedDataParallel(model)
    data = Data(64, truth)
    sampler = DistributedSampler(data, ranks, rank)
    loader, held_out = DataLoader(data, 8, sampler=sampler), DataLoader(Data(16, truth), 2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        with truth.window():
            for inputs, targets in loader:
                truth.step(ranks * len(inputs))
                train_on(whole, optimizer, inputs, targets)
        if kind != "fsdp":
            if rank == 0:
                with truth.window("val"), torch.no_grad():
                    for inputs, _ in held_out:
                        truth.step(len(inputs))
                        model(inputs)
            distributed.barrier()
    if kind == "fsdp":
        tensors = [parameter.full_tensor() for parameter in model.parameters()]
    else:
        tensors = [model]
    if rank == 0:
        truth.write(*tensors)
    print(rank, digest(*tensors)[:8], flush=True) if rank == 0 else None
    distributed.destroy_process_group()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


if __name__ == "__main__":
    if kind == "spawn":
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        torch.multiprocessing.spawn(main, (2,), nprocs=2)
    else:
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
