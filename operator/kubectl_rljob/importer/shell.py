"""Shell scripts, read without executing anything: assignments, arrays, conditions and the commands they end in.

Every command counts as successful, except tests, which are decided, and those that look at a machine (`PROBES`), which
count as failed. `echo` alone prints. Loops and functions are passed over.
"""

import fnmatch
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from kubectl_rljob.importer.arithmetic import evaluate
from kubectl_rljob.importer.words import Variables, end_of_brackets, end_of_word, expand, expand_text

PROBES = ("python", "python3", "command", "which", "type", "grep", "nvidia-smi", "hash")
OPERATORS = (";;", "&&", "||", ";", "|", "&", "\n", "(", ")")
STOP = " \t\n;|&()<>"
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=)(.*)", re.DOTALL)
REDIRECTION = re.compile(r"\d*(<<<|<<-?|>>|[<>]&?)")
ENDS = {"if": "fi", "for": "done", "while": "done", "until": "done", "case": "esac", "select": "done"}
BOUNDARIES = (";", "\n", "&", "|", ";;", "&&", "||", "{", "}", "then", "else", "elif", "do", "(", ")", "!")


def tokens(script: str) -> list[str]:
    """Operators and words, quotes and expansions still in them; comments, redirections and here-documents left out."""
    text = script.replace("\r\n", "\n").replace("\\\n", " ")
    found: list[str] = []
    i, marks = 0, list[str]()
    while i < len(text):
        if text[i] in " \t":
            i += 1
        elif text[i] == "#":
            i = _line_end(text, i)
        elif redirection := REDIRECTION.match(text, i):
            i = end_of_word(text, _skip_blanks(text, redirection.end()), STOP)
            if redirection[1].startswith("<<") and redirection[1] != "<<<":
                marks.append(text[redirection.end() : i].strip().strip("'\""))
        elif operator := next((o for o in OPERATORS if text.startswith(o, i)), ""):
            i += len(operator)
            if operator == "\n":
                i = _behind_documents(text, i, marks)
            found.append(operator)
        else:
            end = _word(text, i)
            found.append(text[i:end])
            i = end
    return found


def _word(text: str, start: int) -> int:
    """Behind a word, an array assignment `A=(...)` included."""
    end = end_of_word(text, start, STOP)
    if text[end : end + 1] == "(" and re.fullmatch(r"\w+\+?=", text[start:end]):
        return _end_of_array(text, end + 1)
    if text.startswith("((", start):
        return end_of_brackets(text, start)
    return max(end, start + 1)


def _end_of_array(text: str, i: int) -> int:
    while i < len(text) and text[i] != ")":
        comment = text[i] == "#" and text[i - 1] in " \t\n("
        i = _line_end(text, i) if comment else max(i + 1, end_of_word(text, i, " \t\n)"))
    return i + 1


def _line_end(text: str, i: int) -> int:
    found = text.find("\n", i)
    return len(text) if found < 0 else found


def _skip_blanks(text: str, i: int) -> int:
    while i < len(text) and text[i] in " \t":
        i += 1
    return i


def _behind_documents(text: str, i: int, marks: list[str]) -> int:
    """Behind the here-documents that the line before has announced."""
    while marks:
        mark = marks.pop(0)
        while i < len(text):
            line = text[i : _line_end(text, i)]
            i = min(_line_end(text, i) + 1, len(text))
            if line.strip() == mark:
                break
    return i


@dataclass
class Shell:
    """A script's state, and the commands that it came to."""

    variables: Variables = field(default_factory=Variables)
    commands: list[list[str]] = field(default_factory=list)
    """Words of every command that is none of the shell's own."""
    exported: dict[str, None] = field(default_factory=dict)
    printed: list[str] = field(default_factory=list)
    skipped: dict[str, None] = field(default_factory=dict)
    """Loops and functions that were passed over."""
    probed: dict[str, None] = field(default_factory=dict)
    """Commands whose output the script reads."""

    def __post_init__(self) -> None:
        self.variables.output = self._output

    def run(self, script: str) -> "Shell":
        self._block(_Reader(tokens(script)), ())
        return self

    def _output(self, command: str) -> str:
        """What a command substitution prints: of `echo` only."""
        inner = Shell(self.variables)
        inner.run(command)
        self.variables.output = self._output
        if not inner.printed:
            self.probed[command.strip()] = None
        return "\n".join(inner.printed)

    def _block(self, reader: "_Reader", ends: tuple[str, ...], live: bool = True) -> bool:
        """Commands up to one of the words `ends`; whether the last one succeeded."""
        status, run = True, live
        while reader.more() and reader.peek() not in ends:
            token = reader.peek()
            if token in ("&&", "||"):
                reader.next()
                run = live and (status if token == "&&" else not status)
            elif token in (";", "\n", "&", "|"):
                reader.next()
                run = live
            else:
                found = self._command(reader, run)
                status = found if run else status
        return status

    def _command(self, reader: "_Reader", live: bool) -> bool:
        token = reader.next()
        if token == "if":
            return self._if(reader, live)
        if token == "case":
            return self._case(reader, live)
        if token in ("for", "while", "until", "select"):
            if live:
                self.skipped[f"a loop: {token}"] = None
            reader.skip_to(ENDS[token], token)
            return True
        if token == "!":
            return not self._command(reader, live)
        if token in ("{", "("):
            end = "}" if token == "{" else ")"
            status = self._block(reader, (end,), live)
            reader.next()
            return status
        if token == "function" or reader.peek() == "(":
            self._function(reader, token)
            return True
        return self._simple([token, *reader.words()], live)

    def _function(self, reader: "_Reader", token: str) -> None:
        self.skipped[f"a function: {reader.peek() if token == 'function' else token}"] = None
        while reader.more() and reader.peek() != "{":
            reader.next()
        if reader.more():
            reader.next()
            reader.skip_to("}", "{")

    def _if(self, reader: "_Reader", live: bool) -> bool:
        taken = False
        while True:
            holds = self._block(reader, ("then",), live and not taken)
            reader.next()
            self._block(reader, ("elif", "else", "fi"), live and not taken and holds)
            taken = taken or holds
            end = reader.next()
            if end == "else":
                self._block(reader, ("fi",), live and not taken)
                end = reader.next()
            if end != "elif":
                return True

    def _case(self, reader: "_Reader", live: bool) -> bool:
        subject, taken = expand_text(reader.next(), self.variables), False
        reader.next()  # in
        while reader.more() and reader.skip_lines() != "esac":
            patterns = reader.until(")")
            fits = any(_fits(subject, expand_text(p, self.variables)) for p in patterns if p not in ("|", "("))
            self._block(reader, (";;", "esac"), live and fits and not taken)
            taken = taken or fits
            if reader.peek() == ";;":
                reader.next()
        reader.next()
        return True

    def _simple(self, words: list[str], live: bool) -> bool:
        if not live:
            return True
        assignments = [*takewhile(bool, map(ASSIGNMENT.fullmatch, words))]
        words = words[len(assignments) :]
        for found in assignments if not words else ():  # before a command they are that command's alone
            if found:
                self._assign(*found.groups())
        if words and words[0] in ("export", "local", "declare", "readonly", "typeset"):
            return self._export(words[0], words[1:])
        if words and words[0].startswith("(("):
            return evaluate(expand_text(words[0][2:-2], self.variables), self._number) not in ("0", "")
        fields = [text for word in words for text in expand(word, self.variables)]
        return self._finished(fields) if fields else True

    def _finished(self, fields: list[str]) -> bool:
        if fields[0] in ("[", "[[", "test"):
            return holds([f for f in fields[1:] if f not in ("]", "]]")])
        if fields[0] in ("echo", "printf"):
            self.printed.append(" ".join(fields[1:]))
        elif fields[0] == "false" or _looks_at_the_machine(fields):
            return False
        else:
            self.commands.append(fields)
        return True

    def _number(self, name: str) -> str:
        return self.variables.text(name) or "0"

    def _export(self, command: str, words: list[str]) -> bool:
        for word in words:
            found = ASSIGNMENT.fullmatch(word)
            if found:
                self._assign(*found.groups())
            if command == "export" and not word.startswith("-"):
                self.exported[found[1] if found else word] = None
        return True

    def _assign(self, name: str, operator: str, word: str) -> None:
        values = self.variables.values
        array = word.startswith("(") and word.endswith(")")
        new = [*self._elements(word[1:-1])] if array else [expand_text(word, self.variables)]
        if operator == "=":
            values[name] = new
        elif array:
            values[name] = values.get(name, []) + new
        else:
            values[name] = ["".join(values.get(name, [])) + new[0]]

    def _elements(self, inside: str) -> Iterator[str]:
        for token in tokens(inside):
            if token not in OPERATORS:
                yield from expand(token, self.variables)


@dataclass
class _Reader:
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
        found = []
        while self.more() and self.peek() not in OPERATORS:
            found.append(self.next())
        return found

    def until(self, end: str) -> list[str]:
        found = []
        while self.more() and self.peek() != end:
            found.append(self.next())
        self.next()
        return found

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


def _looks_at_the_machine(fields: list[str]) -> bool:
    """`python -c` does; a module or a file that python runs is a program like others."""
    return fields[0] in PROBES and "-m" not in fields and not any(field.endswith(".py") for field in fields[1:])


def _fits(subject: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(subject, pattern)


NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


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
            return _fits(left, right)
        case [left, "!=", right]:
            return not _fits(left, right)
        case [left, "=~", pattern]:
            return re.search(pattern, left) is not None
        case [left, op, right] if op in NUMBERS:
            return evaluate(f"{left or 0} {NUMBERS[op]} {right or 0}") == "1"
        case [text]:
            return bool(text)
    return False
