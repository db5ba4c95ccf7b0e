"""VerIF: a prompt's constraints checked by rules and by one question to a judge."""
