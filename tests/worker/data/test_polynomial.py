import torch

from epochmeter.worker.data.polynomial import Polynomial, powers


def samples(split="train", count=100, features=4, seed=0):
    made = Polynomial("none", split, powers({"features": features}, split), count, features, seed)
    return [torch.stack(parts) for parts in zip(*(made[index] for index in range(len(made))), strict=True)]


def with_bias(inputs):
    return torch.nn.functional.pad(inputs, (0, 1), value=1.0)


def test_both_splits_are_of_one_polynomial_with_different_samples_that_the_seed_determines():
    (train, targets), (val, others) = samples(), samples("val")
    assert torch.equal(samples()[0], train)
    assert not torch.equal(samples(seed=4)[0], train)
    assert not {x.item() for x in train[:, 0]} & {x.item() for x in val[:, 0]}
    weights = torch.linalg.lstsq(with_bias(train), targets).solution
    torch.testing.assert_close(with_bias(val) @ weights, others, rtol=1e-3, atol=1e-3)
