"""Without numpy and scipy: what grading loads does without, and the others say what to install."""

import subprocess
import sys

from adjudge.installation import install_command

WITHOUT = "import sys; sys.modules.update(numpy=None, scipy=None); "
COMMANDS = (
    ["audit", "rows.jsonl"],
    ["probe", "spec.toml"],
    ["eval", "judge", "judge"],
    ["study", "swap", "rows.jsonl"],
)
RUN = f"""
{WITHOUT}
import adjudge.cli.grade, adjudge.graders, adjudge.trainers.trl
from adjudge.cli.main import main

def run(words):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as ended:
        return ended.code or 0

for words in {COMMANDS!r}:
    code = run([*words, "--help"])
    assert code == 0, (words, code)
    code = run(words)
    assert code == 2, (words, code)
"""


def test_grading_does_without_and_a_command_says_what_to_install_before_it_asks() -> None:
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stderr.split())
    assert shown.count(f"Run: {install_command('full')}") == len(COMMANDS)
