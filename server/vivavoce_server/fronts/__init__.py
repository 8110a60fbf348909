"""Several processes that serve one address: the fronts, and the supervisor that starts them and keeps them.

    supervisor: `vivavoce serve`                      front, one for each core to spare
    ┌─────────────────────────────────┐               ┌──────────────────────────────────────┐
    │ EngineHost ── watches ──► engine ◄──── audio ────► LinkedEngine                        │
    │ Supervisor ────── Begin, Renew, Leave ───────────► FrontServer, with the whole app     │
    │ the bound sockets ────────────────────────────────► accepts from them                  │
    │ Ledger: clears a dead front's part ◄── shared ───► Ledger: writes its own part         │
    └─────────────────────────────────┘               └──────────────────────────────────────┘

`count.py` says how many, `messages.py` what the supervisor tells, `supervisor.py` and `front.py` are the two sides.
`ledger.py` of the server has what all fronts count together, and `metrics.py` keeps its counters in files.
"""
