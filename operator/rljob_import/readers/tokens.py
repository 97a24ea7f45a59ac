"""Tokens of a shell script, and the stream that the interpreter reads them from."""

import fnmatch
import re
from dataclasses import dataclass

from rljob_import.readers.arithmetic import evaluate
from rljob_import.readers.words import end_of_brackets, end_of_word

OPERATORS = (";;", "&&", "||", ";", "|", "&", "\n", "(", ")")
STOP = " \t\n;|&()<>"
REDIRECTION = re.compile(r"\d*(<<<|<<-?|>>|[<>]&?)")
ENDS = {"if": "fi", "for": "done", "while": "done", "until": "done", "case": "esac", "select": "done"}
BOUNDARIES = (";", "\n", "&", "|", ";;", "&&", "||", "{", "}", "then", "else", "elif", "do", "(", ")", "!")
INPUT = "\0"
"""Begins a word that holds what a command reads; then, of a here-document with quotes around its mark, comes a quote."""
NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


def tokens(script: str) -> list[str]:
    """Operators and words, quotes and expansions still in them; comments and redirections left out. What a command reads, of a here-document
    or behind `<<<`, is one of its words, behind INPUT."""
    text = script.replace("\r\n", "\n")
    parts: list[str] = []
    i, marks = 0, list[tuple[str, int]]()
    while i < len(text):
        if text[i] in " \t":
            i += 1
        elif text.startswith("\\\n", i):  # the next line belongs to this one, unless this is a comment
            i += 2
        elif text[i] == "#":
            i = _line_end(text, i)
        elif redirection := REDIRECTION.match(text, i):
            i = end_of_word(text, _skip_blanks(text, redirection.end()), STOP)
            if redirection[1].startswith("<<"):
                word = text[redirection.end() : i].strip()
                parts.append(INPUT + (word if redirection[1] == "<<<" else ""))
                marks += [] if redirection[1] == "<<<" else [(word, len(parts) - 1)]
        elif text.startswith("((", i) and text[end_of_brackets(text, i) - 2] == ")":
            i, start = end_of_brackets(text, i), i
            parts.append(text[start:i])
        elif operator := next((o for o in OPERATORS if text.startswith(o, i)), ""):
            i += len(operator)
            if operator == "\n":
                i = _behind_documents(text, i, marks, parts)
            parts.append(operator)
        else:
            end = _word(text, i)
            parts.append(text[i:end])
            i = end
    return parts


def _word(text: str, start: int) -> int:
    """Behind a word, an array assignment `A=(...)` included."""
    end = end_of_word(text, start, STOP)
    if text[end : end + 1] == "(" and re.fullmatch(r"\w+\+?=", text[start:end]):
        return _end_of_array(text, end + 1)
    return max(end, start + 1)


def _end_of_array(text: str, i: int) -> int:
    while i < len(text) and text[i] != ")":
        comment = text[i] == "#" and text[i - 1] in " \t\n("
        i = _line_end(text, i) if comment else max(i + 1, end_of_word(text, i, " \t\n)"))
    return i + 1


def _line_end(text: str, i: int) -> int:
    end = text.find("\n", i)
    return len(text) if end < 0 else end


def _skip_blanks(text: str, i: int) -> int:
    while i < len(text) and text[i] in " \t":
        i += 1
    return i


def _behind_documents(text: str, i: int, marks: list[tuple[str, int]], parts: list[str]) -> int:
    """Behind the here-documents that the line before has announced, each of which goes to its place in `parts`."""
    while marks:
        mark, place = marks.pop(0)
        quoted, mark = mark[:1] in ("'", '"', "\\"), mark.strip("'\"\\")
        lines: list[str] = []
        while i < len(text):
            line = text[i : _line_end(text, i)]
            i = min(_line_end(text, i) + 1, len(text))
            if line.strip() == mark:
                break
            lines.append(line)
        parts[place] = INPUT + ("'" if quoted else '"') + "\n".join(lines)
    return i


@dataclass
class TokenStream:
    """Tokens, taken one by one or up to a word that ends something."""

    tokens: list[str]
    at: int = 0

    def more(self) -> bool:
        return self.at < len(self.tokens)

    def peek(self) -> str:
        return self.tokens[self.at] if self.more() else ""

    def next(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1] if self.at <= len(self.tokens) else ""

    def words(self) -> list[str]:
        """Up to the next operator."""
        words = []
        while self.more() and self.peek() not in OPERATORS:
            words.append(self.next())
        return words

    def until(self, end: str) -> list[str]:
        words = []
        while self.more() and self.peek() != end:
            words.append(self.next())
        self.next()
        return words

    def skip_lines(self) -> str:
        while self.peek() in ("\n", ";"):
            self.next()
        return self.peek()

    def skip_to(self, end: str, opening: str) -> None:
        """Behind the word that ends a compound command, others like it inside passed over."""
        depth = 1
        openings = [word for word in ENDS if ENDS[word] == end] or [opening]
        while depth and self.more():
            first = self.at == 0 or self.tokens[self.at - 1] in BOUNDARIES
            token = self.next()
            depth += (token in openings and first) - (token == end and first)


def matches(subject: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(subject, pattern)


def holds(words: list[str]) -> bool:
    """A test: of texts and whole numbers; a file is never there."""
    for joint, combine in (("||", any), ("-o", any), ("&&", all), ("-a", all)):
        if joint in words:
            at = words.index(joint)
            return combine((holds(words[:at]), holds(words[at + 1 :])))
    match words:
        case ["!", *rest]:
            return not holds(rest)
        case ["-n", text]:
            return bool(text)
        case ["-z", *rest]:
            return not any(rest)
        case [left, ("=" | "=="), right]:
            return matches(left, right)
        case [left, "!=", right]:
            return not matches(left, right)
        case [left, "=~", pattern]:
            return re.search(pattern, left) is not None
        case [left, op, right] if op in NUMBERS:
            return evaluate(f"{left or 0} {NUMBERS[op]} {right or 0}") == "1"
        case [text]:
            return bool(text)
    return False
