"""Whether llguidance compiles a grammar within bounds of time and memory: tried in a process of its own, which the
system ends where it does not.

Some grammars take llguidance minutes and gigabytes (intersections of regular expressions, common multiples), and a
thread cannot be stopped. What passes here is compiled again by the caller. Run as a script this file is that process,
which answers each line with one; it imports nothing of ours.
"""

import json
import resource
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from typing import TypeAlias

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

CPU_LIMIT_S = 2.0
"""Of the processor's time for one grammar."""
_MEMORY_LIMIT = 2 << 30
_MAX_ITEMS_IN_ROW = 1000
"""Of llguidance's parser after one byte: a bound of how ambiguous a grammar may be, and so of the time of a mask."""

SpecialTokens: TypeAlias = Sequence[tuple[int, str]]
"""Ids and texts of the tokens that a grammar may name."""


def new_matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Compile a grammar within llguidance's own limits; the matcher says what is wrong with it."""
    # Precomputed lexemes make no mask faster that was measured, and some grammars take half a minute to compile.
    limits = LLParserLimits(max_items_in_row=_MAX_ITEMS_IN_ROW, precompute_large_lexemes=False, verbose_errors=False)
    return LLMatcher(tokenizer, grammar, log_level=0, limits=limits)


class GrammarChecker:
    """The process, started when it is first needed, and again after it was ended. One thread at a time calls it."""

    def __init__(self, cpu_limit_s: float) -> None:
        self._cpu_limit_s = cpu_limit_s
        self._process: subprocess.Popen[bytes] | None = None

    def refusal(self, grammar: str, vocab_size: int, special: SpecialTokens) -> str | None:
        """Return why a grammar is not to be compiled; None where that takes neither long nor much, even to fail."""
        if self._process is None:
            self._process = _start(self._cpu_limit_s)
            weakref.finalize(self, _end, self._process)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps([grammar, vocab_size, list(special)]).encode() + b"\n")
            process.stdin.flush()
            is_answered = bool(process.stdout.readline())
        except BrokenPipeError:
            is_answered = False
        if is_answered:
            return None
        self._process = None
        _end(process)
        if process.returncode == -signal.SIGPROF:
            return f"takes more than {self._cpu_limit_s:g} s to compile"
        return f"takes more than {_MEMORY_LIMIT >> 20} MiB to compile"


def _start(cpu_limit_s: float) -> "subprocess.Popen[bytes]":
    command = [sys.executable, __file__, str(cpu_limit_s)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        try:
            pipe.close()
        except BrokenPipeError:  # of what was written and never read
            continue


class _Tokens:
    """A vocabulary of which only the bytes behind it and the special tokens count."""

    def __init__(self, vocab_size: int, special: SpecialTokens) -> None:
        texts = dict(special)
        self.eos_token_id = vocab_size
        self.bos_token_id = None
        self.tokens = [texts.get(token_id, "").encode() for token_id in range(vocab_size)]
        self.tokens += [b"the end", *(bytes([byte]) for byte in range(256))]
        self.special_token_ids = [*texts, vocab_size]

    def __call__(self, text: bytes) -> list[int]:
        return []


def _serve(cpu_limit_s: float) -> None:
    """Answer grammars, until nobody asks any more or the system ends the process."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT, _MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        grammar, vocab_size, special = json.loads(line)
        tokenizer = LLTokenizer(TokenizerWrapper(_Tokens(vocab_size, special)), eos_token=[vocab_size], slices=[])
        signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
        matcher = new_matcher(tokenizer, grammar)
        if not matcher.is_error():
            matcher.compute_logit_bias()
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve(float(sys.argv[1]))
