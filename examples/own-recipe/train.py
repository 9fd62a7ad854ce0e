"""Fits a line to points that lie on one, by gradient descent: a stand-in for your own training."""

import argparse
import os


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    epochs = parser.parse_args().epochs
    points = [(x / 10, 3 * x / 10 + 1) for x in range(-10, 11)]
    slope = offset = 0.0
    print("threads per process:", os.environ.get("OMP_NUM_THREADS", "as many as cores"))
    for epoch in range(1, epochs + 1):
        for x, y in points * 10:
            error = slope * x + offset - y
            slope -= 0.05 * error * x
            offset -= 0.05 * error
        print(f"epoch {epoch}: y = {slope:.3f} x + {offset:.3f}", flush=True)


if __name__ == "__main__":
    main()
