"""``python -m adjudge_lab`` is ``adjudge``."""

from adjudge.cli.main import main

main()
