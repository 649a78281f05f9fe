import torch

from epochmeter.worker.data.polynomial import Polynomial, powers


def samples(split="train", count=100, features=4, seed=0):
    made = Polynomial("none", split, powers({"features": features}, split), count, features, seed)
    return [torch.stack(parts) for parts in zip(*(made[index] for index in range(len(made))), strict=True)]


def with_bias(inputs):
    return torch.nn.functional.pad(inputs, (0, 1), value=1.0)


def test_both_splits_are_of_one_polynomial_with_different_samples():
    (train, targets), (val, others) = samples(), samples("val")
    assert not {x.item() for x in train[:, 0]} & {x.item() for x in val[:, 0]}
    weights = torch.linalg.lstsq(with_bias(train), targets).solution
    torch.testing.assert_close(with_bias(val) @ weights, others, rtol=1e-3, atol=1e-3)


def test_the_seed_determines_the_samples():
    (first, _), (again, _), (other, _) = samples(), samples(), samples(seed=4)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
