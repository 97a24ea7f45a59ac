"""Scripts are read as bash reads them, and nothing in them is run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rljob_import.readers.arithmetic import devices, evaluate
from rljob_import.readers.hydra import command_line, launch
from rljob_import.readers.shell import Shell
from rljob_import.readers.words import Variables

WORDS = [
    "run a  'b c' \"d $X e\" f\\ g",
    'run ${X:-no} ${Y:-yes} ${Y-} "${Y:-}" ${X:+set} ${Y:+set}',
    'Y=${Z:=3}; run "$Y" $Z',
    "A=(one 'two three' four); A+=(five); run \"${A[@]}\" ${#A[@]} ${A[1]}",
    'E=(); run "${E[@]}" last',
    "run $((2 * (3 + N))) $(( (N + 1) / 2 ))",
    "run ${P##*/} ${P%/*} ${P#*/} ${P%%.*} ${P/a/b} ${P//a/b}",
    "L=\"a=1 b='[2,3]' \\\n  c=4\"; run $L",
    'if [ "$X" = x ] && [ "$N" -gt 3 ]; then run yes; else run no; fi',
    'if [[ -z "${Y:-}" || $N -lt 1 ]]; then run yes; elif [ -n "$X" ]; then run other; fi',
    'case "$X" in a|b) run ab ;; x*) run starts ;; *) run rest ;; esac',
    '[ "$N" -eq 5 ] && run five || run other',
    "run 'it'\"'\"'s' # run comment\nrun next#not",
    'V=$(echo word); run "$V" `echo back`',
    "V=$(false && echo npu || echo gpu); run $V",
    "cat > /dev/null << EOF\nrun hidden\nEOF\nrun shown",
    'X=y run "$X"',
    "(( N > 4 )) && run more",
    "{ run one; run two; }",
    'B=$(( (N + 1) / NOTHING ))\nrun "$B" end',
    '# a comment that ends in \\\nV=1; run a\\\nb c \\\n  d $V "e\\\nf" # rest \\\nrun next',
    'A=(\n a \\\n # b \\\n c\n); run "${A[@]}"',
    'let M=3*4 "K = M + 1"; run $M $K',
    "(( M = N * 2 )); (( M += 1 )); ((N++)); run $M $N; (( N > 9 )) && run more",
    'printf -v E "g-%s-%03d" a 7; V=$(printf "%s/%.1f" a 2); run "$E" $V',
    "read -r -d '' T <<EOF\n  a=1 b=$X\n  c=2\nEOF\nrun $T",
    "read -r -d '' T <<'EOF'\na=$X\nEOF\nrun \"$T\"",
    'read A B <<< "1 2 3"; IFS=, read -r C D <<< "4,5"; run "$A" "$B" $C $D',
    'declare -A M=([a]=1e-6 ["b c"]=2); M[q]=5; K=a; run ${M[$K]} ${M[b c]} ${M[q]} ${M[z]:-none}',
    'A=(x y z); i=1; A[0]=w; R=N; run ${A[$i]} ${A[i+1]} ${A[-1]} ${A[0]} "${A[*]}" ${B[@]:-e} ${!R}',
    "V=$(cat <<EOF\na=$N\nb=2\nEOF\n); run $V; cat <<EOF | run x\nhidden\nEOF\nrun y",
    'f() { L=$1; shift; run $L $1 "$@" $#; }; f 1e-6 b c; set -- p q; run $2 $#',
    'if [ "$N" != 5 ]; then\n  for i in 1 2; do run $i; done\nfi\nrun end',
]


def as_read(script: str) -> list[list[str]]:
    variables = Variables({"X": ["x"], "N": ["5"], "P": ["a/b/data.tar.gz"], "@": [], "#": ["0"]})
    return [command[1:] for command in Shell(variables).run(script).commands if command[0] == "run"]


@pytest.mark.skipif(not shutil.which("bash"), reason="compares with bash")
@pytest.mark.parametrize("script", WORDS)
def test_words_are_those_that_bash_makes(script: str, tmp_path: Path) -> None:
    """`run` writes its arguments, each behind a mark, into a file."""
    out = tmp_path / "out"
    head = f'X=x; N=5; P=a/b/data.tar.gz; run() {{ printf "<%s>" "$@" >> {out}; echo >> {out}; }}\n'
    environment = {"PATH": os.environ["PATH"]}
    subprocess.run(["bash", "-c", head + script], check=False, env=environment, capture_output=True, timeout=20)
    wanted = out.read_text()
    assert "".join("".join(f"<{word}>" for word in words) + "\n" for words in as_read(script)) == wanted


def test_no_command_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    shell = Shell(Variables()).run(f"touch {mark}; X=$(touch {mark}; echo done) `touch {mark}`; echo $X > {mark}")
    assert not mark.exists()
    assert [c[0] for c in shell.commands] == ["touch"]


def test_a_probe_of_the_machine_counts_as_failed() -> None:
    script = "D=${D:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}; run $D"
    assert as_read(script) == [["gpu"]]


COMMAND = "python3 -m verl.trainer.main_ppo a.b=1 c.d='x y'"


@pytest.mark.parametrize(
    "script",
    [
        "for i in 1 2; do COMMAND; done",
        "for ((i=0; i<3; i++)); do\n  COMMAND\ndone",
        "while true; do COMMAND; done",
        "run() {\n  COMMAND\n}\nrun",
        "function run { COMMAND; }\nrun 1 2",
        'ssh node "cd /x && COMMAND"',
        'docker exec verl bash -c "COMMAND"',
        'kubectl exec head -- bash -c "cd /x\nCOMMAND"',
        'CMD="COMMAND"\neval "$CMD"',
        'CMD="COMMAND"\neval $CMD',
        'outer() { inner "$1"; }\ninner() { bash -c "COMMAND"; }\nouter 1',
    ],
)
def test_a_command_is_read_where_it_stands(script: str) -> None:
    shell = Shell(Variables()).run(script.replace("COMMAND", COMMAND))
    assert command_line(launch(shell.commands)).values["a.b"] == 1


def test_of_a_loop_the_first_pass_is_read_and_said() -> None:
    shell = Shell(Variables()).run(
        "for lr in 1e-6 5e-7; do run $lr; done\nuntil true; do run c; done\nfor x in $NONE; do run d; done"
    )
    assert shell.commands == [["run", "1e-6"], ["true"]]
    assert shell.remarks == {
        "a loop: for lr": "only its first pass is read, with lr=1e-6",
        "a loop: until": "is passed over: its condition fails",
        "a loop: for x": "is passed over: it has no value to begin with",
    }


def test_a_function_has_its_own_arguments() -> None:
    script = 'f() { run "$1" "$#" "$@"; }\nf a b\nrun "$1"'
    assert Shell(Variables({"1": ["own"]})).run(script).commands == [["run", "a", "2", "a", "b"], ["run", "own"]]


def test_functions_that_call_each_other_come_to_an_end() -> None:
    assert len(Shell(Variables()).run("f() { f; f; f; f; run x; }\nf").commands) <= 256


def test_what_is_set_outside_is_named() -> None:
    shell = Shell(Variables({"HOME": ["~"]})).run('run "$HOME" "$ELSEWHERE" ${DEFAULTED:-x} $1')
    assert [*shell.variables.unset] == ["ELSEWHERE", "1"]


@pytest.mark.parametrize(
    ("text", "found"),
    [("1024 * 8", "8192"), ("(1 + 2) / 2", "1"), ("-1", "-1"), ("__import__('os')", "__import__('os')")],
)
def test_arithmetic_is_of_whole_numbers(text: str, found: str) -> None:
    assert evaluate(text) == found


def test_device_lists_are_parsed_and_not_evaluated() -> None:
    assert devices("list(range(0,4)) + [6, 7]") == [0, 1, 2, 3, 6, 7]
    assert devices("list([4,5])") == [4, 5]
    assert devices("__import__('os').getcwd()") is None


def test_a_program_in_a_file_is_a_command_and_a_line_of_python_looks_at_the_machine() -> None:
    shell = Shell(Variables()).run("python3 main.py a.b=1\npython3 -c 'import x' && run device")
    assert shell.commands == [["python3", "main.py", "a.b=1"]]


def test_a_here_document_is_run_by_a_shell_alone() -> None:
    overrides = "<<EOF\npython -m verl.trainer.main_ppo trainer.nnodes=3\nEOF\n"
    read = [Shell().run(f"{command} {overrides}").commands for command in ("ssh head bash", "cat > run.sh")]
    assert command_line(launch(read[0])).values == {"trainer.nnodes": 3}
    assert not command_line(launch(read[1])).values
