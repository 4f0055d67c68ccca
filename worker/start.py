"""The file an agent has Python run: `start.py SCRIPT|-m MODULE ARGS…`, or `start.py --nursery FD MODULES…`."""

import sys

if __name__ == "__main__":
    # sys.path[0] is this folder; the shipped packages are beside it, by PYTHONPATH.
    argv = sys.argv[1:]
    if argv[0] == "--nursery":
        from worker.nursery import serve

        argv = serve(int(argv[1]), argv[2:])
    from worker.boot import run

    run(argv)
