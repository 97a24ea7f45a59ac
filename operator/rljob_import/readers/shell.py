"""Shell scripts, read without executing anything: assignments, arrays, conditions and the commands they end in.

Every command counts as successful, except tests, which are decided, and those that look at a machine (`PROBES`), which
count as failed. `echo` alone prints. Of a loop the first pass is read, and a function where it is called. A text that is a
command itself, for `eval`, `bash -c`, `ssh HOST` or `kubectl exec`, is read as a script of its own.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from rljob_import.readers.arithmetic import evaluate
from rljob_import.readers.tokens import ENDS, OPERATORS, TokenStream, holds, matches, tokens
from rljob_import.readers.words import Variables, expand, expand_text

PROBES = ("python", "python3", "command", "which", "type", "grep", "nvidia-smi", "hash")
COUNTED = re.compile(r"\(\(\s*([A-Za-z_]\w*)\s*=\s*(\w+)")
OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_]\w*\.[\w.@-]+=")
INSIDE = re.compile(rf"\s['\"]?{OVERRIDE.pattern}")
"""Of a text that holds a command with overrides."""
DEEPEST, MOST_READ = 8, 256
"""How far functions and texts may lead into each other, and how many of them are read."""
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=)(.*)", re.DOTALL)


@dataclass
class Shell:
    """A script's state, and the commands that it came to."""

    variables: Variables = field(default_factory=Variables)
    commands: list[list[str]] = field(default_factory=list)
    """Words of every command that is none of the shell's own."""
    exported: dict[str, None] = field(default_factory=dict)
    printed: list[str] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)
    """Loops, and what is read of each."""
    functions: dict[str, list[str]] = field(default_factory=dict)
    """Tokens of their bodies, by name."""
    depth: int = 0
    read: int = 0
    probed: dict[str, None] = field(default_factory=dict)
    """Commands whose output the script reads."""

    def __post_init__(self) -> None:
        self.variables.output = self._output

    def run(self, script: str) -> "Shell":
        self._block(TokenStream(tokens(script)), ())
        return self

    def _output(self, command: str) -> str:
        """What a command substitution prints: of `echo` only."""
        inner = Shell(self.variables)
        inner.run(command)
        self.variables.output = self._output
        if not inner.printed:
            self.probed[command.strip()] = None
        return "\n".join(inner.printed)

    def _block(self, stream: TokenStream, ends: tuple[str, ...], live: bool = True) -> bool:
        """Commands up to one of the words `ends`; whether the last one succeeded."""
        status, run = True, live
        while stream.more() and stream.peek() not in ends:
            token = stream.peek()
            if token in ("&&", "||"):
                stream.next()
                run = live and (status if token == "&&" else not status)
            elif token in (";", "\n", "&", "|"):
                stream.next()
                run = live
            else:
                success = self._command(stream, run)
                status = success if run else status
        return status

    def _command(self, stream: TokenStream, live: bool) -> bool:
        token = stream.next()
        if token == "if":
            return self._if(stream, live)
        if token == "case":
            return self._case(stream, live)
        if token in ("for", "while", "until", "select"):
            return self._loop(stream, token, live)
        if token == "!":
            return not self._command(stream, live)
        if token in ("{", "("):
            end = "}" if token == "{" else ")"
            status = self._block(stream, (end,), live)
            stream.next()
            return status
        if token == "function" or stream.peek() == "(":
            self._function(stream, token)
            return True
        return self._simple([token, *stream.words()], live)

    def _function(self, stream: TokenStream, token: str) -> None:
        name = stream.peek() if token == "function" else token
        while stream.more() and stream.peek() != "{":
            stream.next()
        if stream.more():
            stream.next()
            start = stream.at
            stream.skip_to("}", "{")
            self.functions[name] = stream.tokens[start : stream.at - 1]

    def _loop(self, stream: TokenStream, token: str, live: bool) -> bool:
        """Its first pass, if there is one."""
        start = stream.at
        stream.skip_to(ENDS[token], token)
        body = TokenStream(stream.tokens[start : stream.at - 1])
        head = body.until("do")
        if live and (self._begins(token, head) if token in ("for", "select") else self._holds(token, head)):
            self._block(body, ())
        return True

    def _begins(self, token: str, head: list[str]) -> bool:
        """Gives the variable of a loop its first value."""
        name, words = (head or [""])[0], [word for word in head[2:] if word not in OPERATORS]
        counted = COUNTED.match(name)
        values = [counted[2]] if counted else [text for word in words for text in expand(word, self.variables)]
        name = counted[1] if counted else name
        if not values:
            self.remarks[f"a loop: {token} {name}"] = "is passed over: it has no value to begin with"
            return False
        self.variables.values[name] = values[:1]
        self.remarks[f"a loop: {token} {name}"] = f"only its first pass is read, with {name}={values[0]}"
        return True

    def _holds(self, token: str, head: list[str]) -> bool:
        holds = self._block(TokenStream(head), ()) is (token == "while")
        self.remarks[f"a loop: {token}"] = (
            "only its first pass is read" if holds else "is passed over: its condition fails"
        )
        return holds

    def _if(self, stream: TokenStream, live: bool) -> bool:
        taken = False
        while True:
            holds = self._block(stream, ("then",), live and not taken)
            stream.next()
            self._block(stream, ("elif", "else", "fi"), live and not taken and holds)
            taken = taken or holds
            end = stream.next()
            if end == "else":
                self._block(stream, ("fi",), live and not taken)
                end = stream.next()
            if end != "elif":
                return True

    def _case(self, stream: TokenStream, live: bool) -> bool:
        subject, taken = expand_text(stream.next(), self.variables), False
        stream.next()  # in
        while stream.more() and stream.skip_lines() != "esac":
            patterns = stream.until(")")
            fits = any(matches(subject, expand_text(p, self.variables)) for p in patterns if p not in ("|", "("))
            self._block(stream, (";;", "esac"), live and fits and not taken)
            taken = taken or fits
            if stream.peek() == ";;":
                stream.next()
        stream.next()
        return True

    def _simple(self, words: list[str], live: bool) -> bool:
        if not live:
            return True
        assignments = [*takewhile(bool, map(ASSIGNMENT.fullmatch, words))]
        words = words[len(assignments) :]
        for assignment in assignments if not words else ():  # before a command they are that command's alone
            if assignment:
                self._assign(*assignment.groups())
        if words and words[0] in ("export", "local", "declare", "readonly", "typeset"):
            return self._export(words[0], words[1:])
        if words and words[0].startswith("(("):
            return evaluate(expand_text(words[0][2:-2], self.variables), self.variables.number) not in ("0", "")
        fields = [text for word in words for text in expand(word, self.variables)]
        return self._finished(fields) if fields else True

    def _finished(self, fields: list[str]) -> bool:
        if fields[0] in ("[", "[[", "test"):
            return holds([f for f in fields[1:] if f not in ("]", "]]")])
        if fields[0] in ("echo", "printf"):
            self.printed.append(" ".join(fields[1:]))
        elif fields[0] == "false" or _looks_at_the_machine(fields):
            return False
        elif fields[0] in self.functions:
            self._call(fields)
        elif texts := [f for f in fields if INSIDE.search(f) and not OVERRIDE.match(f)]:
            for text in texts:
                self._nested(TokenStream(tokens(text)))
        else:
            self.commands.append(fields)
        return True

    def _call(self, fields: list[str]) -> None:
        """With its arguments in place of the script's."""
        values = self.variables.values
        own = {
            "@": fields[1:],
            "#": [str(len(fields) - 1)],
            **{str(i): [text] for i, text in enumerate(fields[1:10], 1)},
        }
        before = {name: values.get(name) for name in own}
        values.update(own)
        self._nested(TokenStream(self.functions[fields[0]]))
        for name, value in before.items():
            values.pop(name)
            if value is not None:
                values[name] = value

    def _nested(self, stream: TokenStream) -> None:
        if self.depth < DEEPEST and self.read < MOST_READ:
            self.depth, self.read = self.depth + 1, self.read + 1
            self._block(stream, ())
            self.depth -= 1

    def _export(self, command: str, words: list[str]) -> bool:
        for word in words:
            assignment = ASSIGNMENT.fullmatch(word)
            if assignment:
                self._assign(*assignment.groups())
            if command == "export" and not word.startswith("-"):
                self.exported[assignment[1] if assignment else word] = None
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


def _looks_at_the_machine(fields: list[str]) -> bool:
    """`python -c` does; a module or a file that python runs is a program like others."""
    return fields[0] in PROBES and "-m" not in fields and not any(field.endswith(".py") for field in fields[1:])
