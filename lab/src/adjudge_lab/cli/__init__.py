"""Commands of the lab, which :data:`adjudge.cli.main.LAB_COMMANDS` names."""
