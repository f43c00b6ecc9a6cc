"""The claims of both papers: the ledger, the queries that compute our numbers, and the verdicts."""
