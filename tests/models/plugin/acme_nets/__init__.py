"""Networks of a company called Acme, and an operation of theirs."""
