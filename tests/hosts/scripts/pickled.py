"""A DataLoader subclass of the script is pickled by value or by name, and used in other processes."""

import pickle
import sys

import torch
from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on


class Own(DataLoader):
    def __iter__(self):
        yield from super().__iter__()

    def other(self):
        pass


def fit(rate):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), rate)
    for inputs, targets in Own(Data(32), 8):
        loss = train_on(model, optimizer, inputs, targets)
    return loss


if __name__ == "__main__":
    truth = Truth()
    model, optimizer = small_model()
    for _ in range(2):
        with truth.window():
            for inputs, targets in Own(Data(64, truth), 8):
                truth.step(len(inputs))
                train_on(model, optimizer, inputs, targets)
    kind = sys.argv[1]
    rates = (0.1, 0.01)
    if kind == "dill":
        import dill

        found = dill.loads(dill.dumps(Own.__iter__)).__qualname__
    elif kind in ("cloudpickle", "pickle"):
        library = __import__(kind)
        first, second = library.dumps(Own), library.dumps(Own)
        found = [len(first), first == second, b"epochmeter" in first, library.loads(first) is Own]
        found += [len(library.dumps(DataLoader)), len(library.dumps(DataLoader.__iter__)), len(pickle.dumps(iter))]
    elif kind == "joblib":
        import joblib

        found = joblib.Parallel(n_jobs=2)(joblib.delayed(fit)(rate) for rate in rates)
    else:
        import multiprocessing

        with multiprocessing.get_context(kind).Pool(1) as pool:
            found = pool.map(fit, rates)
    print(found, flush=True)
    truth.write(model)
