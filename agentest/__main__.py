"""`agentest` and `python -m agentest`. A signal during imports ends the process without a traceback."""

import os
import signal

for _number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
    if signal.getsignal(_number) is not signal.SIG_IGN:
        signal.signal(_number, lambda *_: os._exit(130))

from agentest.cli.main import main  # noqa: E402 - importing takes longer than pressing Ctrl-C

if __name__ == "__main__":
    main()
