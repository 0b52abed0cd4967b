"""Who runs the clients: side by side, one core each, with results that do not depend on the number of cores.

Parallelism comes from clients, never from inside one client. Sums that are split over threads are rounded
differently, so a client that used all cores would learn something else on a laptop than on a server. A client on
one core learns the same everywhere, and as many clients train at once as there are cores.

Threads suffice for that, because PyTorch lets go of Python's lock while it computes. Each thread has a network of its
own; all read the same data, so nothing is copied or sent.
"""

import contextlib
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from queue import SimpleQueue

import torch


@contextlib.contextmanager
def one_thread():
    """Let PyTorch compute on one thread inside the block, and restore the setting afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def num_workers(workers, device):
    """Return how many clients to train side by side; ``workers=None`` means one a core, and one on a GPU.

    "A core" is what PyTorch counts, so the environment variable OMP_NUM_THREADS limits it.

    Raises
    ------
    ValueError
        If ``workers`` is neither None nor an integer of at least 1.
    """
    if workers is None:
        return torch.get_num_threads() if torch.device(device).type == "cpu" else 1
    if not (isinstance(workers, int) and not isinstance(workers, bool) and workers >= 1):
        raise ValueError(f"workers must be an integer of at least 1, or None for one a core, got {workers!r}")
    return workers


class Workers:
    """Networks to train clients on, and a thread for each.  Use it in a ``with`` statement.

    Parameters
    ----------
    models : list of FlatModel
        Workspaces.  With one there are no threads: everything happens in the thread of the caller.
    """

    def __init__(self, models):
        self.models = models
        self._idle = SimpleQueue()
        for model in models:
            self._idle.put(model)
        self._threads = None
        if len(models) > 1:
            self._threads = ThreadPoolExecutor(len(models), "client", torch.set_num_threads, (1,))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._threads:
            self._threads.shutdown()

    def map(self, work, jobs, costs):
        """Return ``[work(model, *job) for job in jobs]``, computed side by side.

        The most expensive jobs start first, so that no core idles at the end behind a late large one.  ``work``
        must not depend on what its workspace holds.  If one job raises, or the user interrupts, those under way are
        stopped at their next step and the exception is raised here.
        """
        if not self._threads:
            return [work(self.models[0], *job) for job in jobs]
        first = sorted(range(len(jobs)), key=lambda i: -costs[i])
        futures = {i: self._threads.submit(self._borrow, work, jobs[i]) for i in first}
        try:
            for future in wait(futures.values(), return_when=FIRST_EXCEPTION).done:
                future.result()  # raises what was raised there, without waiting for the others
            return [futures[i].result() for i in range(len(jobs))]
        except BaseException:
            self._stop(futures.values())
            raise

    def _borrow(self, work, job):
        model = self._idle.get()
        try:
            return work(model, *job)
        finally:
            self._idle.put(model)

    def _stop(self, futures):
        for future in futures:
            future.cancel()
        for model in self.models:
            model.stopped = True
        wait(futures)
        for model in self.models:
            model.stopped = False
