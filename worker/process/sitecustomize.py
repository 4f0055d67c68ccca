"""Lets any Python below a process of a run join the others; Python imports it at its start, from beside the package.

It does almost nothing until jax is imported, prints nothing, and runs the sitecustomize that it hides. Its syntax is
valid in every version of Python: a program may start any.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class BeforeJax(object):  # noqa: UP004
    """The last moment at which our half of jax.distributed.initialize can be added."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "jax" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        try:
            prepare()
        except Exception:
            pass
        # Again from the beginning: there may be new ones.
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path[:])
        return next((spec for spec in found if spec is not None), None)


def prepare():  # type: () -> None
    """Does nothing where the program has a package `hostmesh` of its own."""
    from importlib.util import find_spec

    found = find_spec("hostmesh")
    if found is not None and found.origin == os.path.join(HERE, "hostmesh", "__init__.py"):
        from hostmesh.worker.distributed import prepare_jax

        prepare_jax()


def run_hidden():  # type: () -> None
    """The sitecustomize that Python would have found without this one, as Debian and conda have it."""
    ours = sys.modules.pop("sitecustomize", None)
    position = next((number for number, path in enumerate(sys.path) if os.path.abspath(path) == HERE), None)
    entry = None if position is None else sys.path.pop(position)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise  # Python tells about it, as it would have
    finally:
        sys.modules.setdefault("sitecustomize", ours)  # type: ignore[arg-type]
        if position is not None and entry is not None:
            sys.path.insert(position, entry)


if "HOSTMESH_PROCESS_ID" in os.environ and sys.version_info >= (3, 9):
    sys.meta_path.insert(0, BeforeJax())
run_hidden()
