"""How a call survives: limits, rates, retries, hedging, breakers, and the spend ceiling."""
