"""The file an agent has Python run: `start.py SCRIPT|-m MODULE ARGS…`, or `start.py --nursery FD ROOM MODULES…`."""

import sys

if __name__ == "__main__":
    # sys.path[0] is this folder; the shipped packages are beside it, by PYTHONPATH.
    argv = sys.argv[1:]
    if argv[0] == "--nursery":
        from hostmesh.worker.process.nursery import serve

        # argv[2] is there for its length: the nursery's workers write their own command over this one.
        argv = serve(int(argv[1]), argv[3:])
    from hostmesh.worker.process.as_python.boot import run

    run(argv)
