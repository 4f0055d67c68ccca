"""Runs the blocks of a document one after the other, in every process alike, and reports each."""

import json
import traceback

BLOCKS = []


def block(function):
    """A block of the document: it runs after those before it, whether they passed or not."""
    BLOCKS.append(function)
    return function


def run_all():
    for function in BLOCKS:
        try:
            function()
        except Exception:
            problem = traceback.format_exc()
        else:
            problem = ""
        print("block", function.__name__, json.dumps(problem), flush=True)
