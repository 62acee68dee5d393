"""The promises, one function each: it is given a ledger, and yields what it finds broken."""
