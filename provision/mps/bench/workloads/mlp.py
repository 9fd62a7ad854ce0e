"""A light training: an MLP of MNIST's shape on random data that is already on the GPU.

Needs PyTorch. Runs in the worker container, once per client, with nothing but what the image has.
It writes a file when it is ready, waits for the other clients, and writes when it began and ended.
"""

import os
import time

import torch

BATCH, PIXELS, HIDDEN, DIGITS = 64, 784, 512, 10
WARM_UP = 30


def main() -> None:
    steps = int(os.environ["PROVISION_BENCH_STEPS"])
    torch.manual_seed(int(os.environ["PROVISION_BENCH_CLIENT"]))
    images = torch.rand(BATCH * 32, PIXELS, device="cuda")
    digits = torch.randint(DIGITS, (BATCH * 32,), device="cuda")
    layers = (
        torch.nn.Linear(PIXELS, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, DIGITS),
    )
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)

    def train(count: int) -> None:
        for step in range(count):
            at = step % 32 * BATCH
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(
                model(images[at : at + BATCH]), digits[at : at + BATCH]
            ).backward()
            optimizer.step()
        torch.cuda.synchronize()

    train(WARM_UP)
    with open(os.environ["PROVISION_BENCH_READY"], "w") as ready:
        ready.write(str(os.getpid()))
    with open(os.environ["PROVISION_BENCH_GO"]):
        began = time.time()
    train(steps)
    with open(os.environ["PROVISION_BENCH_TIMES"], "w") as times:
        times.write("%.6f %.6f" % (began, time.time()))


main()
