import torch

from epochmeter.worker.data.polynomial import Polynomial, powers


def samples(split="train", seed=0):
    made = Polynomial("none", split, powers({"features": 4}, split), count=100, features=4, seed=seed)
    return [torch.stack(parts) for parts in zip(*(made[index] for index in range(len(made))), strict=True)]


def test_both_splits_are_of_one_polynomial_with_samples_by_the_seed():
    (train, targets), (val, others) = samples(), samples("val")
    assert not torch.equal(samples(seed=4)[0], train)
    assert not {x.item() for x in train[:, 0]} & {x.item() for x in val[:, 0]}
    with_bias, val_with_bias = (torch.nn.functional.pad(inputs, (0, 1), value=1.0) for inputs in (train, val))
    weights = torch.linalg.lstsq(with_bias, targets).solution
    torch.testing.assert_close(val_with_bias @ weights, others, rtol=1e-3, atol=1e-3)
