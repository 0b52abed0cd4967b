"""Who runs the clients: each on one thread, so that results never depend on the number of cores."""

import contextlib

import torch


@contextlib.contextmanager
def one_thread():
    """Let PyTorch compute on one thread inside the block, and restore the setting afterwards.

    Sums split over threads are rounded differently: with this rule a laptop and a server give the same bits.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run_clients(work, jobs, model):
    """Call ``work(model, client, version)`` for each job and return the reports in the order of the jobs.

    ``model`` is a workspace that jobs share one after another; ``work`` must not depend on what it holds.
    """
    return [work(model, client, version) for client, version in jobs]
