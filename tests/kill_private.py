"""Play a private run and die in the middle of a round; run as a script by ``test_privacy.py``.

``python kill_private.py FOLDER METHOD PLACE`` is killed when the server has drawn its noise for the fifth time, or when the
clients' rows were written for the fifth time.
"""

import os
import signal
import sys

from test_privacy import small_task, trained

from fedlib import privacy
from fedlib.experiment import run
from fedlib.store import ClientStore

PLACES = {"noise": (privacy, "gaussian"), "rows": (ClientStore, "commit")}


def main(folder, name, place):
    owner, attribute = PLACES[place]
    original, calls = getattr(owner, attribute), []

    def dies(*arguments):
        result = original(*arguments)
        calls.append(None)
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, attribute, dies)
    run(small_task(), trained(name), 8, record=folder, workers=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
