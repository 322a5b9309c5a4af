"""One thread per worker: several would fight over the cores."""

import torch

torch.set_num_threads(1)
