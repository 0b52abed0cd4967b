"""Page 7b: the three-party split as practitioners report it, two of three parties a round, fifty rounds, three local epochs.

On a tenth of the pictures. What is reported with lr 0.001 and all pictures is played with lr 0.01 here: a tenth of the
steps, each ten times as long, is the same way along the gradients as long as both rates are small.
"""

from experiments import SEEDS, Run, pictures

from fedlib import models, partition
from fedlib.aggregate import UniformMean, WeightedMean
from fedlib.control import Scaffold
from fedlib.correction import Correction
from fedlib.ema import EMAControl, MatchedRate
from fedlib.federation import Federation
from fedlib.local import LocalSGD
from fedlib.selection import Uniform
from fedlib.similarity import Similarity
from fedlib.task import Task

LR, ROUNDS = 0.01, 50

REPORTED = {
    "fedavg": (Correction(), WeightedMean()),
    "ema-similarity-coded": (EMAControl(beta=LR), Similarity(0.8, against="parameters")),
    "matched-rate": (MatchedRate(beta=LR), WeightedMean()),
    "scaffold": (Scaffold(), WeightedMean()),
    "ema-similarity-meant": (EMAControl(beta=LR), Similarity(0.8)),
    "uniform": (Correction(), UniformMean()),
}


def reported(correction, aggregate):
    local = LocalSGD(lr=LR, epochs=3, batch_size=32, correction=correction)
    task = Task(models.cnn, pictures(5_000, 2_000), partition.three_party())
    return task, Federation(local, aggregate, select=Uniform(2))


def runs():
    """Every method with the same seeds, hence the same initial models, draws of parties and batches."""
    for arm, parts in REPORTED.items():
        for seed in SEEDS:
            yield Run(f"chapter07b/reported-{arm}-seed{seed}", lambda parts=parts: reported(*parts), ROUNDS, seed)


def groups():
    """There are none."""
    return []
