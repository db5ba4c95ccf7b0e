"""``python -m adjudge_lab`` is ``adjudge`` with the lab's commands, installed or not."""

from adjudge.cli.main import main
from adjudge_lab.cli import COMMANDS

main(COMMANDS)
