"""``python -m adjudge`` is ``adjudge``."""

from adjudge.cli.main import main

main()
