"""`python -m hostmesh look SPEC`: its options, and the way from a spec to what is printed."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from hostmesh.worker.errors import DataError, SettingsError, WorkerError, as_data_error

# What reads and shows records imports NumPy: it is imported after the options were read.
if TYPE_CHECKING:
    from hostmesh.worker.looking.report import Report
    from hostmesh.worker.looking.sample import Sample
    from hostmesh.worker.sources import Source
    from hostmesh.worker.streams.stream import Stream

BAD_INPUT, INTERRUPTED = 2, 130
SHEET = "look.png"

DESCRIPTION = """\
See the data before training on it: how many records there are, their fields
with dtypes, shapes and ranges of values, the first rows, a fingerprint of the
content, how fast records are read, and a sheet of pictures where there are any.

SPEC is what hostmesh.open_source takes (docs/loading.md has all of them):
  digits:train                      handwritten digits that ship along
  npz:PATH, npy:PATH, npy:FOLDER    arrays of NumPy
  arrayrecord:PATH?fields=image:uint8:28x28,label:int32
  tfds:mnist/train                  prepared as ArrayRecord
  tokens:PATH?dtype=uint16&length=1024    windows of a file of tokens; or its
                                    documents, by &separator=N or &offsets=PATH
  images:FOLDER                     pictures, with their subfolders as labels
  hf:PATH_OR_NAME?split=train       Hugging Face
  mix:SPEC=WEIGHT,SPEC=WEIGHT       several of these as one
  module:function?key=value         what a function of yours returns; modules of
                                    the current folder are found"""

EXAMPLES = """\
examples:
  python -m hostmesh look digits:train
      the table, ten rows, the speed, and look.png with 64 of the pictures
  python -m hostmesh look tfds:mnist/train --sheet mnist.png --rows 3 --no-speed
      pictures into a file of their own, three rows, and no measurement
  python -m hostmesh look npy:tokens/ --decode utf-8
      tokens that are bytes, as text
  python -m hostmesh look npy:tokens/ --decode train:to_text
      tokens as the text that to_text(ids) of train.py makes of a list of ids
  python -m hostmesh look mydata:open?split=dev --map train:prepare --workers 8
      records after the loader's map, and their speed with 1 and with 8 threads
  python -m hostmesh look digits:train --json --no-sheet
      the same as one JSON object

Ranges are those of up to 256 records from all over the source, beside the rows
that are shown. A stream has no length: its first records are shown. The exit
code is 0, or 2 when something cannot be read; a record that raises is named,
and the others are shown."""


def main(argv: Sequence[str]) -> int:
    try:
        options = build_parser().parse_args(argv)
        report = look(options)
        _print(report, options.json)
        for problem in report.problems:
            _complain(problem)
        return BAD_INPUT if report.problems else 0
    except WorkerError as error:
        _complain(str(error))
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever reads the output, `head` for instance, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def look(options: argparse.Namespace) -> Report:
    from hostmesh.worker.looking.describe import describe_fields, list_notes
    from hostmesh.worker.looking.report import Report
    from hostmesh.worker.looking.rows import find_decoder, find_token_fields, make_cells
    from hostmesh.worker.streams.stream import Stream

    map = _find(options.map, "--map") if options.map else None
    decode = find_decoder(options.decode, _find) if options.decode else None
    source = _open(options.spec)
    sample = _read(source, options.rows, map)
    fields = describe_fields(sample.records.values())
    tokens = find_token_fields(fields, options.decode) if options.decode else set()
    length = None if isinstance(source, Stream) else len(source)
    report = Report(options.spec, length, len(sample.records), fields, make_cells(sample.rows, tokens, decode))
    report.notes = [] if map else list_notes(fields, sample.records)
    report.problems = _list_failures(sample)
    report.fingerprint = _fingerprint(source, sample)
    if not options.no_sheet:
        _add_sheet(report, sample, options.sheet)
    if not options.no_speed:
        report.speed = _measure(source, sample, map, options)
    return report


def _open(spec: str) -> Source | Stream:
    from hostmesh.worker.sources import open_source
    from hostmesh.worker.streams.stream import Stream

    try:
        source = open_source(spec)
        if not isinstance(source, Stream) and not len(source):
            raise DataError("it is empty; wanted at least one record")
    except WorkerError as error:
        # Most messages begin with the spec, or with what it names.
        raise error if str(error).startswith(spec) else _prefixed(spec, error) from error
    except Exception as error:
        raise as_data_error(spec, error) from error
    return source


def _prefixed(spec: str, error: WorkerError) -> WorkerError:
    return error if spec in str(error) else type(error)(f"{spec}: {error}")


def _find(path: str, option: str) -> Callable[..., Any]:
    from hostmesh.worker.specs.functions import find_function

    try:
        return find_function(path, f"{option} {path}")
    except WorkerError:
        raise
    except Exception as error:  # the module may raise anything
        raise as_data_error(f"{option} {path}", error) from error


def _read(source: Source | Stream, rows: int, map: Callable[..., Any] | None) -> Sample:
    from hostmesh.worker.looking.sample import sample_source, sample_stream
    from hostmesh.worker.streams.stream import Stream

    sample = sample_stream(source, rows, map) if isinstance(source, Stream) else sample_source(source, rows, map)
    if not sample.records:
        raise DataError(next(iter(sample.failures.values()), f"{source.name} gives no record; wanted at least one"))
    return sample


def _list_failures(sample: Sample) -> list[str]:
    from hostmesh.worker.process.words import list_some

    if not sample.failures:
        return []
    number, of = len(sample.failures), len(sample.failures) + len(sample.records)
    told = list_some([sample.failures[id_] for id_ in sorted(sample.failures)], limit=2)
    return [f"{number:,} of {of:,} records cannot be read: {told}"]


def _fingerprint(source: Source | Stream, sample: Sample) -> str | None:
    """Of a source the one that is saved with a checkpoint; of a stream that of its first rows."""
    from hostmesh.worker.streams.stream import Stream
    from hostmesh.worker.verify.fingerprint import describe_source, fingerprint_records

    try:
        if isinstance(source, Stream):
            return fingerprint_records(list(sample.rows.values()))
        return str(describe_source(source)["content"])
    except Exception:  # one of its records cannot be read, which is told already
        return None


def _add_sheet(report: Report, sample: Sample, path: str) -> None:
    """Where there are pictures. Without Pillow a line says how to get it."""
    from hostmesh.worker.errors import MissingPackageError
    from hostmesh.worker.looking.describe import find_labels
    from hostmesh.worker.looking.report import count_all
    from hostmesh.worker.looking.sheet import draw_sheet, find_pictures

    pictures = find_pictures(report.fields)
    if not pictures:
        return
    field = next(field for field in report.fields if field.name == pictures[0])
    labels = find_labels(report.fields)
    title = report.spec if report.length is None else f"{report.spec}: {count_all(report.length, 'record')}"
    try:
        number, problem = draw_sheet(sample.spread or sample.rows, field, labels, title, path)
    except MissingPackageError as error:
        report.sheet_line = f"none: {error}"
        return
    except DataError as error:
        number, problem = 0, str(error)
    if problem:
        report.problems.append(problem)
    if number:
        report.sheet = path
        below = f", {labels} below each" if labels else ""
        others = f"; not of {', '.join(pictures[1:])}" if pictures[1:] else ""
        report.sheet_line = f"{path}: {count_all(number, 'picture')} of {field.name}{below}{others}"


def _measure(source: Source | Stream, sample: Sample, map: Callable[..., Any] | None, options: Any) -> Any:
    from hostmesh.worker.looking.speed import default_workers, measure_source, measure_stream
    from hostmesh.worker.streams.stream import Stream

    if isinstance(source, Stream):
        return measure_stream(source, options.seconds)
    return measure_source(source, map, options.workers or default_workers(), options.seconds, sample.pace)


def _print(report: Report, as_json: bool) -> None:
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack characters that data have
    if as_json:
        import json

        print(json.dumps(report.as_json(), ensure_ascii=False, indent=2))
    else:
        print("\n".join(report.lines(shutil.get_terminal_size().columns)), flush=True)


def _complain(message: str) -> None:
    """On one line, however many a message has."""
    print(f"look: {' '.join(message.split())}", file=sys.stderr)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; python -m hostmesh look --help shows how")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m hostmesh look",
        usage="python -m hostmesh look SPEC [options]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("spec", metavar="SPEC", help="the source to look at")
    add("--rows", metavar="N", type=_count, default=10, help="rows to show (default 10)")
    add("--map", metavar="MODULE:FUNCTION", help="show records after this map of a Loader")
    add("--decode", metavar="HOW", help="token ids as text: utf-8 for bytes, or module:function of a list of ids")
    add("--sheet", metavar="FILE.png", default=SHEET, help=f"where pictures are drawn (default {SHEET})")
    add("--no-sheet", action="store_true", help="draw no pictures")
    add("--workers", metavar="N", type=_count, help="threads of the second speed (default: as many as cores)")
    add("--seconds", metavar="S", type=_seconds, default=1.0, help="how long each speed is measured (default 1)")
    add("--no-speed", action="store_true", help="measure no speed")
    add("--json", action="store_true", help="one JSON object instead of text")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"wanted a whole number of at least 1; found {text}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"wanted a number of seconds above 0; found {text}")
    return value
