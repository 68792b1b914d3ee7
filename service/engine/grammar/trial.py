"""Tries grammars, to find out whether they can be used: `python -m service.engine.grammar.trial`.

A compilation in C++ cannot be interrupted, may eat memory without end, and may crash. So each one has a
forked child to itself, whose processor time and memory the kernel limits. This process stays single-threaded
(a fork takes one thread along) and only passes on what the children find.

    stdin   first {"tokenizer": …, "cpu_s": …, "memory_bytes": …}, then {"id", "kind", "spec"}; a line each.
            {"id", "kind": "left"}: nobody waits for that verdict any more
    stdout  {"id", "fault"}: null when it can be used, "" when it ran into a limit or crashed, else why
            not; with id null once it is ready
"""

from __future__ import annotations

import json
import os
import random
import resource
import selectors
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy

CHUNK = 2**16
LONGEST_FAULT = 300
WALK_TOKENS = 64
LEFT = "left"
STEADY = 10  # niceness: what is being answered goes first


def main() -> None:
    """Serve until stdin ends. The terminal's Ctrl-C is for the service, which closes stdin."""
    os.setpgid(0, 0)
    os.nice(STEADY)
    import xgrammar

    batches = _batches(sys.stdin.fileno())
    setup = json.loads(next((lines[0] for lines in batches if lines), "null"))
    if setup is None:
        return
    info = xgrammar.TokenizerInfo.deserialize_json(setup["tokenizer"])
    # One thread, since the child of a fork has no others; no cache, since each child forgets all.
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    _say({"id": None, "fault": None})
    lengths = numpy.array([len(word) for word in info.decoded_vocab])
    _serve(_Trials(compiler, lengths, setup["cpu_s"], setup["memory_bytes"]), batches)


def _serve(trials: _Trials, batches: Iterator[list[bytes]]) -> None:
    """New tasks, and the verdicts of children, as they come."""
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not sys.stdin:
                selector.unregister(key.fd)
                _say({"id": key.data, "fault": trials.verdict(key.fd)})
            elif (lines := next(batches, None)) is None:
                return
            else:
                for task in map(json.loads, lines):
                    if task["kind"] == LEFT:
                        trials.end(task["id"])
                    else:
                        selector.register(trials.begin(task), selectors.EVENT_READ, task["id"])


def _batches(fd: int) -> Iterator[list[bytes]]:
    """The lines that each read of a descriptor completes, perhaps none; ends with the descriptor."""
    rest = b""
    while chunk := os.read(fd, CHUNK):
        *whole, rest = (rest + chunk).split(b"\n")
        yield whole


def _say(verdict: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(verdict) + "\n")
    sys.stdout.flush()


class _Trials:
    """Trials under way, each in a child that writes what it found into a pipe."""

    def __init__(self, compiler: Any, lengths: Any, cpu_s: float, memory_bytes: int) -> None:
        self._compiler = compiler
        self._lengths = lengths  # of the tokens, in bytes: an array
        self._cpu_s = cpu_s
        self._memory_bytes = memory_bytes
        self._children: dict[int, tuple[int, int]] = {}  # pid and the task's id, by descriptor

    def begin(self, task: dict[str, Any]) -> int:
        """Fork a child for the task; the descriptor that can be read when it is over."""
        verdict, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self._limit()
                os.write(write, self._fault(task["kind"], task["spec"]).encode())
            finally:
                os._exit(0)
        os.close(write)
        self._children[verdict] = pid, task["id"]
        return verdict

    def end(self, number: int) -> None:
        """Kill the child of a task, if it is still at work; its descriptor then can be read."""
        for pid, of in self._children.values():
            if of == number:
                os.kill(pid, signal.SIGKILL)

    def verdict(self, fd: int) -> str | None:
        """What the child has found. One that ended without a word was ended by a limit, or crashed."""
        found = os.read(fd, CHUNK).decode(errors="replace")
        os.close(fd)
        os.waitpid(self._children.pop(fd)[0], 0)
        return None if found == "fits" else found

    def _fault(self, kind: str, spec: str) -> str:
        """Why it cannot be used, or "fits"."""
        try:
            compiled = _compiled(self._compiler, kind, spec)
            # At random, and by the longest words, which soon are where repetitions hurt.
            draw = random.Random(0)
            _walk(compiled, lambda words: int(words[draw.randrange(words.size)]))
            _walk(compiled, lambda words: int(words[self._lengths[words].argmax()]))
        except Barren:
            return "no text can match it"
        except MemoryError:
            return ""
        except Exception as exc:
            return _said(str(exc))
        return "fits"

    def _limit(self) -> None:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, self._cpu_s)
        with open("/proc/self/statm") as statm:
            size = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + self._memory_bytes,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stderr.fileno())  # the compiler prints what callers have written


def _said(complaint: str) -> str:
    """What of a complaint is the caller's; empty where it is the machine's, such as std::bad_alloc.

    "[time] /where/it/is.cc:1: What is wrong": only the end of that.
    """
    last = (complaint.strip().splitlines() or [""])[-1]
    fault = last.partition(".cc:")[2].partition(": ")[2]
    return fault[:LONGEST_FAULT] or ("" if "bad_alloc" in last else "it cannot be read")


class Barren(Exception):
    """A grammar that no text matches."""


def _compiled(compiler: Any, kind: str, spec: str) -> Any:
    if kind == "json":
        return compiler.compile_json_schema(spec, any_whitespace=False, separators=(",", ":"))
    if kind == "regex":
        return compiler.compile_regex(spec)
    if kind == "structural_tag":
        return compiler.compile_structural_tag(spec)
    if kind == "lark":
        return compiler.compile_lark(spec)
    return compiler.compile_grammar(spec)


def _walk(compiled: Any, choose: Callable[[Any], int]) -> None:
    """What the engine does with it, token by token.

    Repetitions in repetitions compile in a moment, and then each token takes longer than the one before it.

    Raises:
        Barren: no text can be written.
    """
    import xgrammar

    matcher = xgrammar.GrammarMatcher(compiled)
    bitmask = xgrammar.allocate_token_bitmask(1, compiled.tokenizer_info.vocab_size)
    ends = compiled.tokenizer_info.stop_token_ids
    for step in range(WALK_TOKENS):
        matcher.fill_next_token_bitmask(bitmask, 0)
        bits = numpy.unpackbits(bitmask.numpy().view(numpy.uint8), bitorder="little")
        if step == 0 and not bits.any():
            raise Barren
        bits[ends] = 0
        words = numpy.flatnonzero(bits)
        if not words.size or not matcher.accept_token(choose(words)) or matcher.is_terminated():
            return


if __name__ == "__main__":
    main()
