"""Shell scripts, read without executing anything: assignments, arrays, conditions and the commands they end in.

Every command counts as successful, except tests, which are decided, and those that look at a machine (`PROBES`), which
count as failed. `echo` alone prints. Of a loop the first pass is read, and a function where it is called. A text that is a
command itself, for `eval`, `bash -c`, `ssh HOST` or `kubectl exec`, is read as a script of its own.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from rljob_import.readers.builtins import compute, formatted, take
from rljob_import.readers.tokens import ENDS, INPUT, OPERATORS, TokenStream, holds, matches, tokens
from rljob_import.readers.words import Variables, expand, expand_text, place_of

PROBES = ("python", "python3", "command", "which", "type", "grep", "nvidia-smi", "hash")
COUNTED = re.compile(r"\(\(\s*([A-Za-z_]\w*)\s*=\s*(\w+)")
OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_]\w*\.[\w.@-]+=")
INSIDE = re.compile(rf"\s['\"]?{OVERRIDE.pattern}")
"""Of a text that holds a command with overrides."""
DEEPEST, MOST_READ = 8, 256
"""How far functions and texts may lead into each other, and how many of them are read."""
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*(?:\[[^\]=]*\])?)(\+?=)(.*)", re.DOTALL)
ELEMENT = re.compile(r"\[([^\]]*)\]=(.*)", re.DOTALL)
ARGUMENTS = ("@", "#", *"123456789")
SHELLS = ("bash", "sh", "ssh", "srun")
"""Commands that run what they read."""


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
        given = "".join(self._input(word) for word in words if word.startswith(INPUT))
        words = [word for word in words if not word.startswith(INPUT)]
        assignments = [*takewhile(bool, map(ASSIGNMENT.fullmatch, words))]
        words = words[len(assignments) :]
        for assignment in assignments if not words else ():  # before a command they are that command's alone
            if assignment:
                self._assign(*assignment.groups())
        if words and words[0] in ("export", "local", "declare", "readonly", "typeset"):
            return self._export(words[0], words[1:])
        if words and words[0].startswith("(("):
            return compute(words[0][2:-2], self.variables) not in ("0", "")
        if words and words[0] == "read":
            self._read(words[1:], given, {a[1]: a[3] for a in assignments if a})
            return True
        fields = [text for word in words for text in expand(word, self.variables)]
        return self._finished(fields, given) if fields else True

    def _input(self, word: str) -> str:
        """What a command reads: a text, or a here-document, whose mark may be in quotes."""
        text = word.removeprefix(INPUT)
        if text[:1] == "'" and not (len(text) > 1 and text.endswith("'")):
            return text[1:]
        if text[:1] == '"' and not (len(text) > 1 and text.endswith('"')):
            return expand_text(f'{text}"', self.variables)
        return expand_text(text, self.variables)

    def _read(self, words: list[str], given: str, own: dict[str, str]) -> None:
        """With the separator that stands before it, `IFS=,`."""
        inner = Variables(
            self.variables.values | {name: [expand_text(word, self.variables)] for name, word in own.items()}
        )
        take([expand_text(word, self.variables) for word in words], given, inner)
        self.variables.values |= {name: value for name, value in inner.values.items() if name not in own}

    def _finished(self, fields: list[str], given: str = "") -> bool:
        if fields[0] in ("[", "[[", "test"):
            return holds([f for f in fields[1:] if f not in ("]", "]]")])
        if fields[0] == "let":
            return [compute(text, self.variables) for text in fields[1:]][-1:] != ["0"]
        if fields[0] == "printf" and fields[1:2] == ["-v"]:
            self.variables.values[fields[2]] = [formatted(fields[3:])]
        elif fields[0] == "printf":
            self.printed.append(formatted(fields[1:]))
        elif fields[0] == "echo":
            self.printed.append(" ".join(fields[1:]))
        elif fields == ["cat"]:
            self.printed.append(given)
        elif fields[0] == "shift":
            self._shift("".join(fields[1:2]))
        elif fields[:2] == ["set", "--"]:
            self._arguments(fields[2:])
        elif fields[0] == "false" or _looks_at_the_machine(fields):
            return False
        elif fields[0] in self.functions:
            self._call(fields)
        elif texts := [f for f in fields if INSIDE.search(f) and not OVERRIDE.match(f)]:
            for text in texts:
                self._nested(TokenStream(tokens(text)))
        elif fields[0] in SHELLS and INSIDE.search(given):
            self._nested(TokenStream(tokens(given)))
        else:
            self.commands.append(fields)
        return True

    def _call(self, fields: list[str]) -> None:
        """With its arguments in place of the script's."""
        values = self.variables.values
        before = {name: values[name] for name in ARGUMENTS if name in values}
        self._arguments(fields[1:])
        self._nested(TokenStream(self.functions[fields[0]]))
        self._arguments([])
        values.update(before)

    def _arguments(self, given: list[str]) -> None:
        values = self.variables.values
        for name in ARGUMENTS:
            values.pop(name, None)
        values.update({"@": given, "#": [str(len(given))]})
        values.update({str(i): [text] for i, text in enumerate(given[:9], 1)})

    def _shift(self, number: str) -> None:
        """Also of arguments that `--env 1=VALUE` gives."""
        values = self.variables.values
        given = values.get("@") or ["".join(values.get(str(i), [])) for i in range(1, 10) if str(i) in values]
        self._arguments(given[int(number) if number.isdigit() else 1 :])

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
        new = [*self._elements(name, word[1:-1])] if array else [expand_text(word, self.variables)]
        if "[" in name:
            name, new = self._element(name, new)
        if operator == "=":
            values[name] = new
        elif array:
            values[name] = values.get(name, []) + new
        else:
            values[name] = ["".join(values.get(name, [])) + new[0]]

    def _element(self, name: str, new: list[str]) -> tuple[str, list[str]]:
        """A list with a new element, or the name of a map's."""
        bare, _, key = name[:-1].partition("[")
        name, at = place_of(bare, key, self.variables)
        listed = self.variables.values.get(name, [])
        return name, new if at is None else [*listed[:at], *new, *listed[at:][1:]]

    def _elements(self, name: str, inside: str) -> Iterator[str]:
        """Of a list; those of a map, `[key]=value`, have names of their own."""
        for token in tokens(inside):
            if element := ELEMENT.fullmatch(token):
                key = f"{name}[{expand_text(element[1], self.variables)}]"
                self.variables.values[key] = [expand_text(element[2], self.variables)]
            elif token not in OPERATORS:
                yield from expand(token, self.variables)


def _looks_at_the_machine(fields: list[str]) -> bool:
    """`python -c` does; a module or a file that python runs is a program like others."""
    return fields[0] in PROBES and "-m" not in fields and not any(field.endswith(".py") for field in fields[1:])
